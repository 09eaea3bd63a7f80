/*
 * Replaces Vulkan's loader: computes nothing, allocates every object separately so that sanitizers
 * find leaks and wrong uses, and fails on request.
 *
 * FAKE_FAIL=n: the function of call n (from 0, of the calls that can fail) fails from then on, with
 * FAKE_RESULT. FAKE_DEVICES, FAKE_EXTENSIONS: their numbers. FAKE_CACHE: bytes of a pipeline cache.
 * FAKE_PUSH_BYTES: bytes of push constants. FAKE_INVOCATIONS: invocations of a workgroup.
 * FAKE_RANGE: bytes of a buffer that can be bound. FAKE_HALF_STORAGE: whether buffers may contain
 * float16. FAKE_TYPE: type of the device.
 *
 * It prints the commands of each command buffer, a letter each: D for a dispatch, B for a barrier
 * before later dispatches, H for a barrier before the host. It aborts if another function is called
 * while a submission is not waited for. At the end, it prints counts of calls and of some arguments,
 * the number of extensions enabled last, the number of calls that can fail, the function that failed,
 * and the number of objects that are not destroyed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vulkan/vulkan.h>

#define MAX_CHILDREN 1024
#define MAX_COMMANDS 1024
#define MAX_COUNTED 64

typedef struct {
    void *children[MAX_CHILDREN];
    uint32_t count;
} object_t;

static uint32_t calls, live, instances, enabled;
static const char *failing = "";
static char recorded[MAX_COMMANDS + 1];
static VkFence awaited;
static struct {
    const char *what;
    uint32_t times;
} counted[MAX_COUNTED];

static uint32_t number(const char *name, uint32_t otherwise) {
    const char *const text = getenv(name);
    return text == NULL ? otherwise : (uint32_t)atoi(text);
}

static void require(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "fake: %s\n", what);
        abort();
    }
}

static void counts(const char *what, uint32_t times) {
    uint32_t i = 0;
    while (i < MAX_COUNTED && counted[i].what != NULL && strcmp(counted[i].what, what) != 0) {
        ++i;
    }
    require(i < MAX_COUNTED, "too many things to count");
    counted[i].what = what;
    counted[i].times += times;
}

__attribute__((destructor)) static void tell(void) {
    for (uint32_t i = 0; i < MAX_COUNTED && counted[i].what != NULL; ++i) {
        fprintf(stderr, "fake: %u times %s\n", counted[i].times, counted[i].what);
    }
    fprintf(stderr, "fake: %u extensions\n", enabled);
    fprintf(stderr, "fake: %u calls, failed %s, live %u\n", calls, failing, live);
}

static int fails(const char *function) {
    counts(function, 1);
    require(awaited == VK_NULL_HANDLE || strcmp(function, "vkWaitForFences") == 0 ||
                strcmp(function, "vkDeviceWaitIdle") == 0,
            "a submission is not waited for");
    if (calls++ == number("FAKE_FAIL", UINT32_MAX)) {
        failing = function;
    }
    return strcmp(failing, function) == 0;
}

#define MAY_FAIL                                    \
    if (fails(__func__)) {                          \
        return (VkResult)atoi(getenv("FAKE_RESULT")); \
    }

static void *made(void) {
    ++live;
    return calloc(1, sizeof(object_t));
}

static void unmade(void *object) {
    if (object != NULL) {
        --live;
        free(object);
    }
}

static VkResult child(object_t *parent, uint32_t count, void **found) {
    for (uint32_t i = 0; i < count; ++i) {
        require(parent->count < MAX_CHILDREN, "too many objects of one pool");
        found[i] = parent->children[parent->count++] = made();
    }
    return VK_SUCCESS;
}

static void unmade_pool(object_t *pool) {
    for (uint32_t i = 0; pool != NULL && i < pool->count; ++i) {
        unmade(pool->children[i]);
    }
    unmade(pool);
}

#define CREATE(function, info_t, handle_t)                                                    \
    VkResult function(VkDevice device, const info_t *info, const VkAllocationCallbacks *with, \
                      handle_t *object) {                                                     \
        MAY_FAIL                                                                              \
        (void)device, (void)info, (void)with;                                                 \
        *object = (handle_t)made();                                                           \
        return VK_SUCCESS;                                                                    \
    }

#define DESTROY(function, handle_t)                                                          \
    void function(VkDevice device, handle_t object, const VkAllocationCallbacks *with) {     \
        (void)device, (void)with;                                                            \
        unmade((void *)object);                                                              \
    }

/* --- instance and device ---------------------------------------------------------------------- */

static int devices[64];

VkResult vkCreateInstance(const VkInstanceCreateInfo *info, const VkAllocationCallbacks *with,
                          VkInstance *instance) {
    MAY_FAIL
    (void)info, (void)with;
    ++instances;
    *instance = (VkInstance)made();
    return VK_SUCCESS;
}

void vkDestroyInstance(VkInstance instance, const VkAllocationCallbacks *with) {
    (void)with;
    require(instances-- > 1 || live == 1, "objects are left when the instance goes");
    unmade(instance);
}

VkResult vkEnumeratePhysicalDevices(VkInstance instance, uint32_t *count, VkPhysicalDevice *found) {
    MAY_FAIL
    (void)instance;
    const uint32_t all = number("FAKE_DEVICES", 1), room = *count;
    *count = all < room ? all : room;
    for (uint32_t i = 0; i < *count; ++i) {
        found[i] = (VkPhysicalDevice)&devices[i];
    }
    return all <= room ? VK_SUCCESS : VK_INCOMPLETE;
}

void vkGetPhysicalDeviceProperties(VkPhysicalDevice device, VkPhysicalDeviceProperties *found) {
    memset(found, 0, sizeof *found);
    found->apiVersion = VK_API_VERSION_1_1;
    found->deviceType = (VkPhysicalDeviceType)number("FAKE_TYPE", VK_PHYSICAL_DEVICE_TYPE_CPU);
    snprintf(found->deviceName, sizeof found->deviceName, "fake %d", (int)((int *)device - devices));
    found->limits.maxComputeWorkGroupInvocations = number("FAKE_INVOCATIONS", 128);
    found->limits.maxComputeSharedMemorySize = 16384;
    found->limits.maxPushConstantsSize = number("FAKE_PUSH_BYTES", 128);
    found->limits.maxStorageBufferRange = number("FAKE_RANGE", 1u << 27);
}

void vkGetPhysicalDeviceQueueFamilyProperties(VkPhysicalDevice device, uint32_t *count,
                                              VkQueueFamilyProperties *found) {
    (void)device;
    *count = 2;
    memset(found, 0, 2 * sizeof *found);
    found[0].queueFlags = VK_QUEUE_TRANSFER_BIT;
    found[1].queueFlags = VK_QUEUE_COMPUTE_BIT;
}

static const char *const extension_names[] = {VK_KHR_SHADER_INTEGER_DOT_PRODUCT_EXTENSION_NAME,
                                              VK_KHR_SHADER_FLOAT16_INT8_EXTENSION_NAME};

VkResult vkEnumerateDeviceExtensionProperties(VkPhysicalDevice device, const char *layer,
                                              uint32_t *count, VkExtensionProperties *found) {
    MAY_FAIL
    (void)device, (void)layer;
    const uint32_t all = number("FAKE_EXTENSIONS", 2), room = *count;
    *count = all < room ? all : room;
    for (uint32_t i = 0; i < *count; ++i) {
        strcpy(found[i].extensionName, i < 2 ? extension_names[i] : "VK_other");
    }
    return all <= room ? VK_SUCCESS : VK_INCOMPLETE;
}

void vkGetPhysicalDeviceFeatures2(VkPhysicalDevice device, VkPhysicalDeviceFeatures2 *found) {
    (void)device;
    for (VkBaseOutStructure *next = found->pNext; next != NULL; next = next->pNext) {
        switch ((int)next->sType) {
        case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES:
            ((VkPhysicalDevice16BitStorageFeatures *)next)->storageBuffer16BitAccess =
                number("FAKE_HALF_STORAGE", 1);
            break;
        case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES_KHR:
            ((VkPhysicalDeviceShaderFloat16Int8FeaturesKHR *)next)->shaderFloat16 = VK_TRUE;
            break;
        case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES_KHR:
            ((VkPhysicalDeviceShaderIntegerDotProductFeaturesKHR *)next)
                ->shaderIntegerDotProduct = VK_TRUE;
            break;
        default:
            require(0, "features of an extension that is not there");
        }
    }
}

void vkGetPhysicalDeviceProperties2(VkPhysicalDevice device, VkPhysicalDeviceProperties2 *found) {
    vkGetPhysicalDeviceProperties(device, &found->properties);
    ((VkPhysicalDeviceShaderIntegerDotProductPropertiesKHR *)found->pNext)
        ->integerDotProduct4x8BitPackedSignedAccelerated = VK_TRUE;
}

VkResult vkCreateDevice(VkPhysicalDevice physical, const VkDeviceCreateInfo *info,
                        const VkAllocationCallbacks *with, VkDevice *device) {
    MAY_FAIL
    (void)physical, (void)with;
    require(info->pQueueCreateInfos->queueFamilyIndex == 1, "the queue does not compute");
    enabled = info->enabledExtensionCount;
    *device = (VkDevice)made();
    return VK_SUCCESS;
}

void vkDestroyDevice(VkDevice device, const VkAllocationCallbacks *with) {
    (void)with;
    require(instances > 1 || live == 2, "objects are left when the device goes");
    unmade(device);
}

void vkGetDeviceQueue(VkDevice device, uint32_t family, uint32_t index, VkQueue *queue) {
    (void)family, (void)index;
    *queue = (VkQueue)device;
}

VkResult vkDeviceWaitIdle(VkDevice device) {
    awaited = VK_NULL_HANDLE;
    MAY_FAIL
    (void)device;
    return VK_SUCCESS;
}

/* --- memory ----------------------------------------------------------------------------------- */

void vkGetPhysicalDeviceMemoryProperties(VkPhysicalDevice device,
                                         VkPhysicalDeviceMemoryProperties *found) {
    (void)device;
    memset(found, 0, sizeof *found);
    found->memoryTypeCount = 3;
    found->memoryTypes[0].propertyFlags = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT;
    found->memoryTypes[1].propertyFlags =
        VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT | VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT |
        VK_MEMORY_PROPERTY_HOST_COHERENT_BIT | VK_MEMORY_PROPERTY_DEVICE_COHERENT_BIT_AMD;
    found->memoryTypes[2].propertyFlags =
        VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
}

CREATE(vkCreateBuffer, VkBufferCreateInfo, VkBuffer)
DESTROY(vkDestroyBuffer, VkBuffer)

void vkGetBufferMemoryRequirements(VkDevice device, VkBuffer buffer, VkMemoryRequirements *found) {
    (void)device, (void)buffer;
    found->size = 1u << 16;
    found->alignment = 256;
    found->memoryTypeBits = 7;
}

VkResult vkAllocateMemory(VkDevice device, const VkMemoryAllocateInfo *info,
                          const VkAllocationCallbacks *with, VkDeviceMemory *memory) {
    MAY_FAIL
    (void)device, (void)with;
    require(info->memoryTypeIndex == 2, "the host cannot see the memory, or it needs a feature");
    ++live;
    *memory = (VkDeviceMemory)malloc(info->allocationSize);
    return VK_SUCCESS;
}

DESTROY(vkFreeMemory, VkDeviceMemory)

VkResult vkBindBufferMemory(VkDevice device, VkBuffer buffer, VkDeviceMemory memory,
                            VkDeviceSize offset) {
    MAY_FAIL
    (void)device, (void)buffer, (void)memory;
    require(offset % 256 == 0, "a buffer is misaligned");
    return VK_SUCCESS;
}

VkResult vkMapMemory(VkDevice device, VkDeviceMemory memory, VkDeviceSize offset,
                     VkDeviceSize size, VkMemoryMapFlags flags, void **data) {
    MAY_FAIL
    (void)device, (void)offset, (void)size, (void)flags;
    *data = (void *)memory;
    return VK_SUCCESS;
}

/* --- descriptors and pipelines ---------------------------------------------------------------- */

CREATE(vkCreateDescriptorSetLayout, VkDescriptorSetLayoutCreateInfo, VkDescriptorSetLayout)
DESTROY(vkDestroyDescriptorSetLayout, VkDescriptorSetLayout)
CREATE(vkCreatePipelineLayout, VkPipelineLayoutCreateInfo, VkPipelineLayout)
DESTROY(vkDestroyPipelineLayout, VkPipelineLayout)
CREATE(vkCreateDescriptorPool, VkDescriptorPoolCreateInfo, VkDescriptorPool)
CREATE(vkCreateShaderModule, VkShaderModuleCreateInfo, VkShaderModule)
DESTROY(vkDestroyShaderModule, VkShaderModule)
DESTROY(vkDestroyPipeline, VkPipeline)
DESTROY(vkDestroyPipelineCache, VkPipelineCache)

void vkDestroyDescriptorPool(VkDevice device, VkDescriptorPool pool,
                             const VkAllocationCallbacks *with) {
    (void)device, (void)with;
    unmade_pool((object_t *)pool);
}

VkResult vkAllocateDescriptorSets(VkDevice device, const VkDescriptorSetAllocateInfo *info,
                                  VkDescriptorSet *sets) {
    MAY_FAIL
    (void)device;
    counts("descriptor set", info->descriptorSetCount);
    return child((object_t *)info->descriptorPool, info->descriptorSetCount, (void **)sets);
}

void vkUpdateDescriptorSets(VkDevice device, uint32_t count, const VkWriteDescriptorSet *writes,
                            uint32_t copies, const VkCopyDescriptorSet *copied) {
    (void)device, (void)count, (void)writes, (void)copies, (void)copied;
}

static uint8_t cache_byte(size_t i) {
    return (uint8_t)(i * 7 + 1);
}

VkResult vkCreatePipelineCache(VkDevice device, const VkPipelineCacheCreateInfo *info,
                               const VkAllocationCallbacks *with, VkPipelineCache *cache) {
    MAY_FAIL
    (void)device, (void)with;
    const size_t bytes = info->initialDataSize;
    require(bytes == 0 || bytes == number("FAKE_CACHE", 32), "a cache is not what it was");
    for (size_t i = 0; i < bytes; ++i) {
        require(((const uint8_t *)info->pInitialData)[i] == cache_byte(i), "a cache is damaged");
    }
    fprintf(stderr, "fake: cache of %zu\n", bytes);
    *cache = (VkPipelineCache)made();
    return VK_SUCCESS;
}

VkResult vkGetPipelineCacheData(VkDevice device, VkPipelineCache cache, size_t *bytes, void *data) {
    MAY_FAIL
    (void)device, (void)cache;
    const size_t all = number("FAKE_CACHE", 32), room = *bytes;
    if (data == NULL) {
        *bytes = all;
        return VK_SUCCESS;
    }
    *bytes = all < room ? all : room;
    for (size_t i = 0; i < *bytes; ++i) {
        ((uint8_t *)data)[i] = cache_byte(i);
    }
    return all <= room ? VK_SUCCESS : VK_INCOMPLETE;
}

VkResult vkCreateComputePipelines(VkDevice device, VkPipelineCache cache, uint32_t count,
                                  const VkComputePipelineCreateInfo *infos,
                                  const VkAllocationCallbacks *with, VkPipeline *pipelines) {
    MAY_FAIL
    (void)device, (void)cache, (void)infos, (void)with;
    counts("pipeline", count);
    for (uint32_t i = 0; i < count; ++i) {
        pipelines[i] = (VkPipeline)made();
    }
    return VK_SUCCESS;
}

/* --- commands --------------------------------------------------------------------------------- */

CREATE(vkCreateCommandPool, VkCommandPoolCreateInfo, VkCommandPool)

void vkDestroyCommandPool(VkDevice device, VkCommandPool pool, const VkAllocationCallbacks *with) {
    (void)device, (void)with;
    unmade_pool((object_t *)pool);
}

VkResult vkAllocateCommandBuffers(VkDevice device, const VkCommandBufferAllocateInfo *info,
                                  VkCommandBuffer *buffers) {
    MAY_FAIL
    (void)device;
    counts("command buffer", info->commandBufferCount);
    return child((object_t *)info->commandPool, info->commandBufferCount, (void **)buffers);
}

VkResult vkBeginCommandBuffer(VkCommandBuffer commands, const VkCommandBufferBeginInfo *info) {
    MAY_FAIL
    (void)commands, (void)info;
    recorded[0] = '\0';
    return VK_SUCCESS;
}

static void record(char command) {
    const size_t count = strlen(recorded);
    require(count < MAX_COMMANDS, "too many commands");
    recorded[count] = command;
    recorded[count + 1] = '\0';
}

VkResult vkEndCommandBuffer(VkCommandBuffer commands) {
    MAY_FAIL
    (void)commands;
    fprintf(stderr, "fake: recorded %s\n", recorded);
    return VK_SUCCESS;
}

void vkCmdBindDescriptorSets(VkCommandBuffer commands, VkPipelineBindPoint point,
                             VkPipelineLayout layout, uint32_t first, uint32_t count,
                             const VkDescriptorSet *sets, uint32_t offset_count,
                             const uint32_t *offsets) {
    (void)commands, (void)point, (void)layout, (void)first, (void)count, (void)sets;
    (void)offset_count, (void)offsets;
    counts("vkCmdBindDescriptorSets", 1);
}

void vkCmdPipelineBarrier(VkCommandBuffer commands, VkPipelineStageFlags from,
                          VkPipelineStageFlags to, VkDependencyFlags dependency, uint32_t count,
                          const VkMemoryBarrier *barriers, uint32_t buffer_count,
                          const VkBufferMemoryBarrier *buffers, uint32_t image_count,
                          const VkImageMemoryBarrier *images) {
    static const VkAccessFlags shader = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT;
    static const VkAccessFlags host = VK_ACCESS_HOST_READ_BIT | VK_ACCESS_HOST_WRITE_BIT;
    (void)commands, (void)dependency, (void)buffers, (void)images;
    require(count == 1 && buffer_count + image_count == 0, "a barrier is not one of memory");
    require(from == VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT &&
                barriers->srcAccessMask == VK_ACCESS_SHADER_WRITE_BIT,
            "a barrier is not for what dispatches wrote");
    const int to_host = to == VK_PIPELINE_STAGE_HOST_BIT;
    require(to_host || to == VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, "a barrier is for none");
    require(barriers->dstAccessMask == (to_host ? host : shader), "a barrier lets too little see");
    record(to_host ? 'H' : 'B');
}

void vkCmdBindPipeline(VkCommandBuffer commands, VkPipelineBindPoint point, VkPipeline pipeline) {
    (void)commands, (void)point, (void)pipeline;
}

void vkCmdPushConstants(VkCommandBuffer commands, VkPipelineLayout layout, VkShaderStageFlags stage,
                        uint32_t offset, uint32_t size, const void *values) {
    (void)commands, (void)layout, (void)stage, (void)offset, (void)size, (void)values;
    counts("vkCmdPushConstants", 1);
}

void vkCmdDispatch(VkCommandBuffer commands, uint32_t x, uint32_t y, uint32_t z) {
    (void)commands, (void)x, (void)y, (void)z;
    record('D');
}

CREATE(vkCreateFence, VkFenceCreateInfo, VkFence)
DESTROY(vkDestroyFence, VkFence)

VkResult vkResetFences(VkDevice device, uint32_t count, const VkFence *fences) {
    MAY_FAIL
    (void)device, (void)count;
    ((object_t *)fences[0])->count = 0;
    return VK_SUCCESS;
}

VkResult vkQueueSubmit(VkQueue queue, uint32_t count, const VkSubmitInfo *submits, VkFence fence) {
    MAY_FAIL
    (void)queue, (void)count, (void)submits;
    require(((object_t *)fence)->count++ == 0, "a fence is used that is signaled");
    awaited = fence;
    return VK_SUCCESS;
}

VkResult vkWaitForFences(VkDevice device, uint32_t count, const VkFence *fences, VkBool32 all,
                         uint64_t timeout) {
    MAY_FAIL
    (void)device, (void)all;
    require(count == 1 && fences[0] == awaited, "another fence is waited for");
    require(timeout == UINT64_MAX, "it is not waited for to the end");
    awaited = VK_NULL_HANDLE;
    return VK_SUCCESS;
}
