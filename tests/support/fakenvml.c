/* NVML's C interface, answered from the file that FAKE_NVML_STATE names: a line "KEY NUMBER" for what is there, or
 * "KEY !CODE" for a call that fails. What has no line is NVML_ERROR_NOT_SUPPORTED. Types are those of the NVML API
 * Reference Guide, so that a caller with other sizes or orders reads garbage here too.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int nvmlReturn_t;
typedef struct { int index; } *nvmlDevice_t;
typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;
typedef struct { unsigned int version; unsigned long long total, reserved, free, used; } nvmlMemory_v2_t;
typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;
typedef struct { unsigned int max, high, partial, low, none; } nvmlRowRemapperHistogramValues_t;
typedef struct {
    unsigned int version;
    unsigned long long aggregateUncParity, aggregateUncSecDed, aggregateCor, volatileUncParity, volatileUncSecDed,
        volatileCor, aggregateUncBucketL2, aggregateUncBucketSm, aggregateUncBucketPcie, aggregateUncBucketMcu,
        aggregateUncBucketOther;
    unsigned int bThresholdExceeded;
} nvmlEccSramErrorStatus_v1_t;

enum { UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, VERSION_MISMATCH = 25 };

static struct { char key[64]; char value[64]; } lines[1024];
static int count, ready;
static struct { int index; } devices[64];

static const char *find(const char *key)
{
    for (int i = 0; i < count; i++)
        if (!strcmp(lines[i].key, key))
            return lines[i].value;
    return NULL;
}

static nvmlReturn_t number(const char *key, unsigned long long *value)
{
    const char *found = find(key);
    if (!ready)
        return UNINITIALIZED;
    if (!found)
        return NOT_SUPPORTED;
    if (*found == '!')
        return atoi(found + 1);
    *value = strtoull(found, NULL, 10);
    return 0;
}

static nvmlReturn_t of(nvmlDevice_t device, const char *what, unsigned long long *value)
{
    char key[64];
    snprintf(key, sizeof key, "%d.lost", device->index);
    if (find(key))
        return 15;
    snprintf(key, sizeof key, "%d.%s", device->index, what);
    return number(key, value);
}

static nvmlReturn_t small(nvmlDevice_t device, const char *what, unsigned int *value)
{
    unsigned long long found;
    nvmlReturn_t code = of(device, what, &found);
    if (!code)
        *value = (unsigned int)found;
    return code;
}

nvmlReturn_t nvmlInit_v2(void)
{
    unsigned long long code = 0;
    FILE *file = fopen(getenv("FAKE_NVML_STATE"), "r");
    count = 0;
    while (file && count < 1024 && fscanf(file, "%63s %63s", lines[count].key, lines[count].value) == 2)
        count++;
    if (file)
        fclose(file);
    for (int i = 0; i < 64; i++)
        devices[i].index = i;
    ready = 1;
    number("init", &code);
    if (code)
        ready = 0;
    return (nvmlReturn_t)code;
}

nvmlReturn_t nvmlShutdown(void)
{
    if (!ready)
        return UNINITIALIZED;
    ready = 0;
    return 0;
}

const char *nvmlErrorString(nvmlReturn_t code)
{
    return code == 15 ? "GPU is lost" : code == 18 ? "Driver/library version mismatch" : "some error";
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    const char *found = find("driver");
    snprintf(version, length, "%s", found ? found : "550.54.15");
    return 0;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *value)
{
    unsigned long long found = 0;
    nvmlReturn_t code = number("count", &found);
    *value = (unsigned int)found;
    return code;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    char key[64];
    unsigned long long unused;
    snprintf(key, sizeof key, "%u.handle", index);
    *device = (nvmlDevice_t)&devices[index];
    return find(key) ? number(key, &unused) : 0;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    snprintf(uuid, length, "GPU-%d", device->index);
    return 0;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *info)
{
    memset(info, 0xff, sizeof *info);
    snprintf(info->busIdLegacy, sizeof info->busIdLegacy, "0000:%02X:00.0", device->index + 1);
    snprintf(info->busId, sizeof info->busId, "00000000:%02X:00.0", device->index + 1);
    return 0;
}

nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, int kind, int counter, int place, unsigned long long *value)
{
    char key[64];
    if (counter != 0)
        return INVALID_ARGUMENT;
    snprintf(key, sizeof key, "ecc.%d.%d", kind, place);
    return of(device, key, value);
}

nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, nvmlEccSramErrorStatus_v1_t *status)
{
    if (status->version != (sizeof *status | 1u << 24))
        return VERSION_MISMATCH;
    memset(&status->aggregateUncParity, 0xff, sizeof *status - sizeof(unsigned long long));
    return small(device, "sram", &status->bThresholdExceeded);
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrected, unsigned int *uncorrected, unsigned int *pending, unsigned int *failed)
{
    nvmlReturn_t code = small(device, "rows.corrected", corrected);
    *uncorrected = *pending = *failed = 0;
    small(device, "rows.uncorrected", uncorrected);
    small(device, "rows.pending", pending);
    small(device, "rows.failed", failed);
    return code;
}

nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *values)
{
    values->max = 640;
    values->high = values->partial = values->low = 7;
    return small(device, "rows.none", &values->none);
}

nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, int cause, unsigned int *pages, unsigned long long *addresses)
{
    char key[64];
    nvmlReturn_t code;
    snprintf(key, sizeof key, "pages.%d", cause);
    code = small(device, key, pages);
    return code ? code : *pages && !addresses ? INSUFFICIENT_SIZE : 0;
}

nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, unsigned int *pending)
{
    return small(device, "pages.pending", pending);
}

nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons)
{
    return of(device, "throttle", reasons);
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, unsigned int *active)
{
    char key[64];
    snprintf(key, sizeof key, "link.%u", link);
    return small(device, key, active);
}

nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned int link, int counter, unsigned long long *value)
{
    char key[64];
    snprintf(key, sizeof key, "link.%u.%d", link, counter);
    return of(device, key, value);
}

#ifndef OLD
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *infos, nvmlProcessInfo_t *info)
{
    unsigned int found = 0, room = *infos;
    for (unsigned int i = 0; i < room; i++) {
        char key[64];
        snprintf(key, sizeof key, "pid.%u", i);
        memset(&info[i], 0xff, sizeof info[i]);
        if (small(device, key, &info[i].pid))
            break;
        found++;
    }
    *infos = found;
    return 0;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    if (memory->version != (sizeof *memory | 2u << 24))
        return VERSION_MISMATCH;
    memory->total = 80ull << 30;
    memory->reserved = 2ull << 30;
    memory->free = 0;
    return of(device, "held", &memory->used);
}
#endif
