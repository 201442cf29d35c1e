/* Folders as durable things: listed, synced to disk, renamed, locked against a second process, removed. */
#ifndef MX8_BASE_FOLDER_H
#define MX8_BASE_FOLDER_H

#include <stdint.h>
#include "mx8/status.h"

/* Names of what stands directly in the folder, of every kind, sorted by bytes. Release with mx8i_release_list. */
enum mx8_status mx8i_list_folder(const char *path, char ***names, int64_t *count);
/* Entries made, renamed or removed in the folder so far survive a power cut. A file's own bytes: mx8i_sync_file. */
enum mx8_status mx8i_sync_folder(const char *path);
enum mx8_status mx8i_sync_file(const char *path);
enum mx8_status mx8i_sync_parent(const char *path); /* the folder that path stands in */
/* Renames and syncs the folder of `to`. Replaces a file, never a folder that holds anything. */
enum mx8_status mx8i_rename(const char *from, const char *to);
/* Removes path and all below it; nothing there is no failure. Links are removed, not followed. */
enum mx8_status mx8i_remove_tree(const char *path);
/* Takes path (made when missing) for this process alone, until mx8i_unlock_file or the end of the process, however it
 * ends. BUSY is told by *fd == -1 with MX8_OK. File systems without locks: *fd is a lock that nobody else sees. */
enum mx8_status mx8i_lock_file(const char *path, int *fd);
void mx8i_unlock_file(int fd);
/* Whether mx8i_make_folders and a new file there can succeed, as far as can be told without making anything: the nearest
 * folder that exists is one, and this process may write to it. `what` names the setting in the message. */
enum mx8_status mx8i_check_folder(const char *path, const char *what);
/* Bytes that this process can still write there; -1 when unknown. */
int64_t mx8i_get_free_space(const char *path);

#endif
