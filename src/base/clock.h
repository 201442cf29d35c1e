/* Monotonic time, and the process' memory. */
#ifndef MX8_BASE_CLOCK_H
#define MX8_BASE_CLOCK_H
#include <stdint.h>
double mx8i_get_seconds(void);           /* monotonic, arbitrary start */
/* "2026-12-01 12:34:56,789" local time, as Python's logging prints it; buffer of 32 bytes. */
void mx8i_format_time(char buffer[32]);
int64_t mx8i_get_peak_rss(void);         /* bytes, of this process, 0 when unknown */
int64_t mx8i_get_available_memory(void); /* bytes the machine (or its cgroup) can still give, 0 when unknown */
#endif
