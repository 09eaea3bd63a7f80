/* Names that Zephyr's headers define. */
#ifndef ENVIRONMENT_ZEPHYR_H
#define ENVIRONMENT_ZEPHYR_H

#include <stddef.h>
#include <stdint.h>

struct k_thread;
struct k_timer;
struct k_sem;
struct device;
struct net_if;
struct net_buf;
struct net_context;
struct net_pkt;

typedef struct k_thread *k_tid_t;
typedef struct {
    int64_t ticks;
} k_timeout_t;
typedef uint32_t k_ticks_t;
typedef struct k_spinlock_key {
    int key;
} k_spinlock_key_t;
typedef void (*k_thread_entry_t)(void *p1, void *p2, void *p3);
typedef void (*net_context_recv_cb_t)(struct net_context *context, struct net_pkt *pkt);
typedef uint32_t mem_addr_t;
typedef uint32_t device_handle_t;
typedef uint8_t gpio_pin_t;
typedef uint32_t gpio_flags_t;
typedef uint16_t sa_family_t;
typedef enum { SYS_NET_UNUSED, SYS_NET_USED } sys_net_state_t;
enum net_if_state { NET_IF_DOWN, NET_IF_UP };
enum net_verdict { NET_OK, NET_CONTINUE, NET_DROP };

#define BIT(n) (1UL << (n))
#define BIT_MASK(n) (BIT(n) - 1UL)
#define GENMASK(h, l) (BIT_MASK((h) + 1) & ~BIT_MASK(l))
#define MIN(a, b) (((a) < (b)) ? (a) : (b))
#define MAX(a, b) (((a) > (b)) ? (a) : (b))
#define CLAMP(val, low, high) (((val) <= (low)) ? (low) : MIN(val, high))
#define ARRAY_SIZE(array) (sizeof(array) / sizeof((array)[0]))
#define CONTAINER_OF(ptr, type, field) ((type *)(((char *)(ptr)) - offsetof(type, field)))
#define DIV_ROUND_UP(n, d) (((n) + (d)-1) / (d))
#define ROUND_UP(x, align) ((((unsigned long)(x) + ((unsigned long)(align)-1)) / (align)) * (align))
#define ceiling_fraction(n, d) (((n) + ((d)-1)) / (d))
#define KB(x) ((x) << 10)
#define MB(x) (KB(x) << 10)
#define KHZ(x) ((x)*1000)
#define K_FOREVER ((k_timeout_t){-1})
#define K_NO_WAIT ((k_timeout_t){0})
#define K_MSEC(ms) ((k_timeout_t){(ms)})
#define SYS_INIT(function, level, priority)
#define SYS_FOREVER_MS (-1)
#define IS_ENABLED(option) 0
#define UTIL_AND(a, b) (a)
#define ARG_UNUSED(x) (void)(x)
#define EMPTY
#define IDENTITY(x) x
#define LISTIFY(length, f, separator)
#define FOR_EACH(f, separator, ...)
#define COND_CODE_1(flag, yes, no) no
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#define popcount(x) __builtin_popcount(x)
#define __aligned(x) __attribute__((__aligned__(x)))
#define __noinit
#define __used __attribute__((__used__))
#define __unused __attribute__((__unused__))
#define __maybe_unused __attribute__((__unused__))
#define __deprecated
#define __weak __attribute__((__weak__))
#define ALWAYS_INLINE inline __attribute__((always_inline))
#define FUNC_NORETURN __attribute__((__noreturn__))
#define STACK_ALIGN 8
#define CONFIG_NETWORKING 1
#define CONFIG_NET_BUF 1
#define NET_BUF_POOL_DEFINE(name, count, size, ud_size, destroy)
#define NET_DEVICE_INIT(name)
#define NET_MAX_CONN 4
#define ZTEST(suite, name)
#define LOG_MODULE_REGISTER(...)
#define LOG_ERR(...)
#define DT_ALIAS(alias) alias
#define DEVICE_DT_GET(node) 0
#define PRINT printk
#define STRINGIFY(s) #s
#define CONCAT(a, b) a##b
#define INLINE inline
#define IN 0
#define OUT 1

void printk(const char *fmt, ...);
int net_init(void);
int net_recv_data(struct net_if *iface, struct net_pkt *pkt);

#endif
