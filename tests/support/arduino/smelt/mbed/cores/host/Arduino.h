/* The part of Arduino's interface that sketches of exports use, with its overloads of `print`. */
#ifndef ARDUINO_H
#define ARDUINO_H

#include <stddef.h>
#include <stdint.h>

class HostSerial {
  public:
    void begin(unsigned long baud);
    operator bool() const { return true; }
    size_t print(const char text[]);
    size_t print(char letter);
    size_t print(long number, int base = 10);
    size_t print(double number, int digits = 2);
    size_t println();
    size_t println(const char text[]);
    size_t println(unsigned long number, int base = 10);
};

extern HostSerial Serial;

unsigned long micros();
unsigned long millis();
void delay(unsigned long milliseconds);
void setup();
void loop();

#endif
