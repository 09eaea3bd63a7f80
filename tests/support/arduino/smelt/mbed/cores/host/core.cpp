#include "Arduino.h"

#include <stdio.h>
#include <stdlib.h>

HostSerial Serial;

void HostSerial::begin(unsigned long) {}

size_t HostSerial::print(const char text[]) {
    return static_cast<size_t>(printf("%s", text));
}

size_t HostSerial::print(char letter) {
    return static_cast<size_t>(printf("%c", letter));
}

size_t HostSerial::print(long number, int) {
    return static_cast<size_t>(printf("%ld", number));
}

size_t HostSerial::print(double number, int digits) {
    return static_cast<size_t>(printf("%.*f", digits, number));
}

size_t HostSerial::println() {
    return print('\n');
}

size_t HostSerial::println(const char text[]) {
    return print(text) + println();
}

size_t HostSerial::println(unsigned long number, int) {
    return static_cast<size_t>(printf("%lu\n", number));
}

unsigned long micros() {
    return 0;
}

unsigned long millis() {
    return 0;
}

/* Sketches call this after an inference; end the program after the first. */
void delay(unsigned long) {
    exit(0);
}

int main() {
    setup();
    for (;;) {
        loop();
    }
}
