/* Names that FreeRTOS, its ports and vendors' headers define. */
#ifndef ENVIRONMENT_FREERTOS_H
#define ENVIRONMENT_FREERTOS_H

#include <stddef.h>
#include <stdint.h>

typedef uint32_t StackType_t;
typedef long BaseType_t;
typedef unsigned long UBaseType_t;
typedef uint32_t TickType_t;
typedef struct tskTaskControlBlock *TaskHandle_t;
typedef struct QueueDefinition *QueueHandle_t;
typedef QueueHandle_t SemaphoreHandle_t;
typedef struct tmrTimerControl *TimerHandle_t;
typedef struct EventGroupDef_t *EventGroupHandle_t;
typedef struct StreamBufferDef_t *StreamBufferHandle_t;
typedef void (*TaskFunction_t)(void *);
typedef enum { eRunning = 0, eReady, eBlocked, eSuspended, eDeleted, eInvalid } eTaskState;
typedef struct xLIST {
    UBaseType_t uxNumberOfItems;
} List_t;
typedef enum { RESET = 0, SET = !RESET } FlagStatus, ITStatus;
typedef enum { DISABLE = 0, ENABLE = !DISABLE } FunctionalState;
typedef enum { SUCCESS = 0, ERROR = !SUCCESS } ErrorStatus;
typedef enum { HAL_OK = 0, HAL_ERROR, HAL_BUSY, HAL_TIMEOUT } HAL_StatusTypeDef;

#define pdFALSE ((BaseType_t)0)
#define pdTRUE ((BaseType_t)1)
#define pdPASS pdTRUE
#define pdFAIL pdFALSE
#define portMAX_DELAY ((TickType_t)0xffffffffUL)
#define portTICK_PERIOD_MS ((TickType_t)1)
#define portSTACK_TYPE uint32_t
#define portBASE_TYPE long
#define portCHAR char
#define portFLOAT float
#define portLONG long
#define portYIELD() ((void)0)
#define pdMS_TO_TICKS(ms) ((TickType_t)(ms))
#define configASSERT(x) ((void)(x))
#define configMINIMAL_STACK_SIZE 128
#define configTICK_RATE_HZ 1000
#define tskIDLE_PRIORITY 0
#define taskENTER_CRITICAL() ((void)0)
#define taskEXIT_CRITICAL() ((void)0)
#define xTaskHandle TaskHandle_t
#define listGET_OWNER(item) (item)
#define STATUS_OK 0
#define UNUSED(x) ((void)(x))
#define READ_BIT(reg, bit) ((reg) & (bit))
#define CLEAR_BIT(reg, bit) ((reg) &= ~(bit))
#define SET_BIT(reg, bit) ((reg) |= (bit))
#define __IO volatile
#define __I volatile const
#define __O volatile
#define __weak __attribute__((weak))
#define __packed __attribute__((packed))
#define TIM1 0
#define ADC1 1
#define DMA1 2
#define USART1 3
#define GPIOA 4
#define RNG 5
#define CRC 6
#define RTC 7
#define I2C 8
#define SPI 9

void vTaskDelay(const TickType_t ticks);
void vTaskStartScheduler(void);
void *pvPortMalloc(size_t size);
void vPortFree(void *memory);

#endif
