/* Power and clock of a GPU, from the driver's management library (NVML) where it is installed. Opened by name: nothing
 * of it is needed to build. */
#ifndef MX8_BENCH_POWER_H
#define MX8_BENCH_POWER_H

#include <dlfcn.h>
#include <string.h>

struct power_meter {
    void *library, *device;
    int (*read_power)(void *device, unsigned *milliwatts);
    int (*read_clock)(void *device, int domain, unsigned *mhz);
};

/* ISO C has no cast from an object pointer to a function pointer. */
static inline int find_function(void *library, const char *name, void *function) {
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof symbol);
    return symbol != NULL;
}

/* Of the device with this index among those of the machine. Without the library, or where it refuses, read_power_meter
 * reads zeros. */
static inline struct power_meter open_power_meter(unsigned index) {
    struct power_meter m = {0}, none = {0};
    int (*begin)(void), (*find_device)(unsigned index, void **device);
    m.library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!m.library || !find_function(m.library, "nvmlInit_v2", &begin) ||
        !find_function(m.library, "nvmlDeviceGetHandleByIndex_v2", &find_device) ||
        !find_function(m.library, "nvmlDeviceGetPowerUsage", &m.read_power) ||
        !find_function(m.library, "nvmlDeviceGetClockInfo", &m.read_clock))
        return none;
    return begin() == 0 && find_device(index, &m.device) == 0 ? m : none;
}

/* The driver's average over about the last tenth of a second, and the multiprocessors' clock now. */
static inline void read_power_meter(const struct power_meter *m, double *watts, double *mhz) {
    enum { CLOCK_SM = 1 };
    unsigned milliwatts = 0, clock = 0;
    if (m->device && (m->read_power(m->device, &milliwatts) || m->read_clock(m->device, CLOCK_SM, &clock)))
        milliwatts = clock = 0;
    *watts = milliwatts * 1e-3;
    *mhz = clock;
}
#endif
