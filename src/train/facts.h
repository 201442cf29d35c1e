/* What a checkpoint remembers of its job, and which of that a job that resumes may change. */
#ifndef MX8_TRAIN_FACTS_H
#define MX8_TRAIN_FACTS_H

#include "train/checkpoint.h"
#include "train/run.h"

/* Appends to job (resolved values that decide what the state means) and options (every option's text). */
enum mx8_status mx8i_describe_job(const struct mx8_run *r, struct mx8_facts *job, struct mx8_facts *options);
/* INVALID_ARGUMENT, naming both values of everything that may not differ; a log line for what differs and may. Silent
 * about what does not change a result. `where` begins the message. */
enum mx8_status mx8i_compare_job(const struct mx8_run *r, const struct mx8_manifest *m, const char *where);

#endif
