/* Macros and types of Arduino's cores that could collide with names in a network's code. */
#ifndef ENVIRONMENT_ARDUINO_H
#define ENVIRONMENT_ARDUINO_H

#include <ctype.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef uint8_t byte;
typedef uint16_t word;
typedef _Bool boolean;
typedef uint8_t pin_size_t;
typedef enum { LOW = 0, HIGH = 1, CHANGE = 2, FALLING = 3, RISING = 4 } PinStatus;
typedef void (*voidFuncPtr)(void);

#define INPUT 0x0
#define OUTPUT 0x1
#define INPUT_PULLUP 0x2
#define INPUT_PULLDOWN 0x3
#define OUTPUT_OPENDRAIN 0x4
#define DEFAULT 1
#define EXTERNAL 0
#define INTERNAL 3
#define PI 3.1415926535897932384626433832795
#define HALF_PI 1.5707963267948966192313216916398
#define TWO_PI 6.283185307179586476925286766559
#define DEG_TO_RAD 0.017453292519943295769236907684886
#define RAD_TO_DEG 57.295779513082320876798154814105
#define EULER 2.718281828459045235360287471352
#define SERIAL 0x0
#define DISPLAY 0x1
#define LSBFIRST 0
#define MSBFIRST 1
#define OK 0
#define ERROR 1
#define F(text) (text)
#define PROGMEM
#define F_CPU 16000000L
#define LED_BUILTIN 13
#define A0 14
#define A1 15
#define SDA 18
#define SCL 19
#define SS 10
#define MOSI 11
#define R1 0
#define R2 1
#define B0 0
#define B1 1
#define B00 0
#define B01 1
#define B10 2
#define B11 3
#define DEC 10
#define HEX 16
#define OCT 8
#define BIN 2
#define NOT_A_PIN 0

#undef abs
#undef round
#define abs(x) ((x) > 0 ? (x) : -(x))
#define round(x) ((x) >= 0 ? (long)((x) + 0.5) : (long)((x)-0.5))
#define min(a, b) ((a) < (b) ? (a) : (b))
#define max(a, b) ((a) > (b) ? (a) : (b))
#define constrain(amt, low, high) ((amt) < (low) ? (low) : ((amt) > (high) ? (high) : (amt)))
#define radians(deg) ((deg)*DEG_TO_RAD)
#define degrees(rad) ((rad)*RAD_TO_DEG)
#define sq(x) ((x) * (x))
#define interrupts() ((void)0)
#define noInterrupts() ((void)0)
#define lowByte(w) ((uint8_t)((w)&0xff))
#define highByte(w) ((uint8_t)((w) >> 8))
#define bit(b) (1UL << (b))
#define bitRead(value, at) (((value) >> (at)) & 0x01)
#define bitSet(value, at) ((value) |= (1UL << (at)))
#define bitClear(value, at) ((value) &= ~(1UL << (at)))
#define bitToggle(value, at) ((value) ^= (1UL << (at)))
#define bitWrite(value, at, on) ((on) ? bitSet(value, at) : bitClear(value, at))
#define _BV(at) (1 << (at))
#define cli() ((void)0)
#define sei() ((void)0)
#define digitalPinToInterrupt(pin) (pin)

void init(void);
void setup(void);
void loop(void);
void yield(void);
void delay(unsigned long ms);
void tone(uint8_t pin, unsigned int frequency, unsigned long duration);
long map(long x, long in_min, long in_max, long out_min, long out_max);
unsigned long millis(void);
unsigned long micros(void);
uint16_t analogRead(uint8_t pin);

#endif
