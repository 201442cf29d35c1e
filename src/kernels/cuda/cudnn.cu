// Opening libcudnn. Nothing is linked: a machine without it runs the own kernels.
#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <mutex>
#include "cudnn.cuh"

namespace {

enum { PATH_BYTES = 1024 };

// Opens FOLDER/NAME, or the first match of a pattern.
void *open_match(const char *folder, const char *pattern, const char *name, char *path, size_t path_size) {
    char full[PATH_BYTES];
    glob_t found;
    void *library = NULL;
    snprintf(full, sizeof full, "%s/%s/%s", folder, pattern, name);
    if (glob(full, 0, NULL, &found) != 0) return NULL;
    for (size_t i = 0; i < found.gl_pathc && !library; i++) {
        library = dlopen(found.gl_pathv[i], RTLD_NOW | RTLD_LOCAL);
        if (library) snprintf(path, path_size, "%s", found.gl_pathv[i]);
    }
    globfree(&found);
    return library;
}

// Python's packages below `prefix`, as pip and Debian lay them out; `part` is nvidia/cudnn/lib or the like.
void *open_below(const char *prefix, const char *part, const char *name, char *path, size_t path_size) {
    static const char *const layouts[] = {"lib/python3*/site-packages", "lib/python3*/dist-packages",
        "local/lib/python3*/dist-packages", "lib/python3/dist-packages"};
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        char pattern[PATH_BYTES];
        snprintf(pattern, sizeof pattern, "%s/%s", layouts[i], part);
        void *library = open_match(prefix, pattern, name, path, path_size);
        if (library) return library;
    }
    return NULL;
}

// The prefix of a folder's python3: a virtual environment's own, then that of the program it links to.
void *open_beside(const char *bin, const char *part, const char *name, char *path, size_t path_size) {
    char python[PATH_BYTES], prefix[PATH_BYTES], *real;
    snprintf(python, sizeof python, "%s/python3", bin);
    if (!(real = realpath(python, NULL))) return NULL;
    snprintf(prefix, sizeof prefix, "%s/..", bin);
    void *library = open_below(prefix, part, name, path, path_size);
    char *slash = strrchr(real, '/');
    if (!library && slash) {
        *slash = 0;
        snprintf(prefix, sizeof prefix, "%s/..", real);
        library = open_below(prefix, part, name, path, path_size);
    }
    free(real);
    return library;
}

void *open_in_packages(const char *part, const char *name, char *path, size_t path_size) {
    const char *environment = getenv("VIRTUAL_ENV"), *home = getenv("HOME"), *search = getenv("PATH");
    void *library = NULL;
    if (environment && *environment) library = open_below(environment, part, name, path, path_size);
    char *folders = search ? strdup(search) : NULL, *rest = NULL;
    for (char *bin = folders ? strtok_r(folders, ":", &rest) : NULL; bin && !library; bin = strtok_r(NULL, ":", &rest))
        library = open_beside(bin, part, name, path, path_size);
    free(folders);
    if (!library && home && *home) {
        char prefix[PATH_BYTES];
        snprintf(prefix, sizeof prefix, "%s/.local", home);
        library = open_below(prefix, part, name, path, path_size);
    }
    return library;
}

// cuDNN compiles some kernels with NVRTC, which it opens by name: PyTorch's wheels keep it where no loader looks.
void open_compiler(void) {
    char name[40], path[PATH_BYTES];
    snprintf(name, sizeof name, "libnvrtc.so.%d", CUDART_VERSION / 1000);
    if (dlopen(name, RTLD_NOW | RTLD_GLOBAL)) return;
    if (open_in_packages("nvidia/cu13/lib", name, path, sizeof path)) return;
    open_in_packages("nvidia/cuda_nvrtc/lib", name, path, sizeof path);
}

void *find_cudnn(char *path, size_t path_size, char *why, size_t why_size) {
    const char *named = getenv("MX8_CUDNN_LIBRARY"), *name = "libcudnn.so.9";
    if (named && *named) {
        void *library = dlopen(named, RTLD_NOW | RTLD_LOCAL);
        if (library)
            snprintf(path, path_size, "%s", named);
        else
            snprintf(why, why_size, "MX8_CUDNN_LIBRARY: %s", dlerror());
        return library;
    }
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library)
        snprintf(path, path_size, "%s", name);
    else
        library = open_in_packages("nvidia/cudnn/lib", name, path, path_size);
    if (!library) snprintf(why, why_size, "no %s", name);
    return library;
}

bool load_functions(void *handle, cudnn::library *lib, char *why, size_t why_size) {
    const struct {
        const char *name;
        void *function;
    } table[] = {
        {"cudnnGetVersion", &lib->get_version},
        {"cudnnGetErrorString", &lib->get_error_string},
        {"cudnnGetLastErrorString", &lib->get_last_error},
        {"cudnnCreate", &lib->create},
        {"cudnnDestroy", &lib->destroy},
        {"cudnnSetStream", &lib->set_stream},
        {"cudnnBackendCreateDescriptor", &lib->create_descriptor},
        {"cudnnBackendDestroyDescriptor", &lib->destroy_descriptor},
        {"cudnnBackendSetAttribute", &lib->set_attribute},
        {"cudnnBackendGetAttribute", &lib->get_attribute},
        {"cudnnBackendFinalize", &lib->finalize},
        {"cudnnBackendExecute", &lib->execute},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        void *symbol = dlsym(handle, table[i].name);
        if (!symbol) {
            snprintf(why, why_size, "libcudnn has no %s", table[i].name);
            return false;
        }
        memcpy(table[i].function, &symbol, sizeof symbol);
    }
    lib->version = lib->get_version();
    return true;
}

} // namespace

const struct cudnn::library *cudnn::open_library(char *why, size_t why_size) {
    static std::mutex once;
    static struct library lib;
    static char failure[256];
    static bool tried;
    const std::lock_guard<std::mutex> lock(once);
    if (!tried) {
        tried = true;
        void *handle = find_cudnn(lib.path, sizeof lib.path, failure, sizeof failure);
        if (handle && load_functions(handle, &lib, failure, sizeof failure)) open_compiler();
    }
    if (failure[0]) snprintf(why, why_size, "%s", failure);
    return failure[0] ? NULL : &lib;
}
