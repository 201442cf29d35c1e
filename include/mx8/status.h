/* Statuses and the last error message of a thread. */
#ifndef MX8_STATUS_H
#define MX8_STATUS_H

#if defined(_WIN32)
#define MX8_API
#else
#define MX8_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Every fallible function returns one of these. The numbers are part of the ABI and never change. */
enum mx8_status {
    MX8_OK = 0,
    MX8_INVALID_ARGUMENT = 1,    /* a value, shape, stride or dtype that the function does not take */
    MX8_UNSUPPORTED = 2,         /* legal, but not on this device or in this build */
    MX8_OUT_OF_MEMORY = 3,
    MX8_WORKSPACE_TOO_SMALL = 4, /* the message names the size that would do */
    MX8_IO_ERROR = 10,
    MX8_FORMAT_ERROR = 11,       /* a file or text that is not what it claims to be */
    MX8_NOT_FINITE = 12,         /* training met a NaN or Inf and was told to stop */
    MX8_CUDA_ERROR = 20,
    MX8_LIBRARY_ERROR = 21,      /* a library opened at run time failed */
    MX8_COMM_ERROR = 30,
    MX8_INTERRUPTED = 40,
    MX8_INTERNAL = 99            /* a defect in mx8 itself */
};

/* Constant name of a status, such as "MX8_OUT_OF_MEMORY"; "MX8_UNKNOWN" for any other number. Never NULL. */
MX8_API const char *mx8_get_status_name(enum mx8_status status);

/* Message of the last failure on the calling thread: function, offending value, what was expected. Empty when
 * nothing failed yet. Borrowed until the next failing call on this thread; a call that succeeds leaves it alone. */
MX8_API const char *mx8_get_last_error(void);

/* Version of the library that is running, as MAJOR * 10000 + MINOR * 100 + PATCH, and as text. */
#define MX8_VERSION_MAJOR 0
#define MX8_VERSION_MINOR 1
#define MX8_VERSION_PATCH 0
#define MX8_VERSION (MX8_VERSION_MAJOR * 10000 + MX8_VERSION_MINOR * 100 + MX8_VERSION_PATCH)
MX8_API int mx8_get_version(void);
MX8_API const char *mx8_get_version_text(void);

#ifdef __cplusplus
}
#endif
#endif
