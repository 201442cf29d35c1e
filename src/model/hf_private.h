/* Between hf_config.c, which knows each family's config.json, and the table of families. */
#ifndef MX8_MODEL_HF_PRIVATE_H
#define MX8_MODEL_HF_PRIVATE_H

#include <math.h>
#include "model/hf.h"

extern const struct mx8_hf_key mx8i_llama4_keys[], mx8i_qwen3_keys[], mx8i_olmoe_keys[], mx8i_mixtral_keys[];

/* rope_theta (`theta` when absent), rope_scaling and rope_parameters. */
enum mx8_status mx8i_read_hf_rope(const char *where, const json_t *object, double theta, struct mx8_model_config *c);
int mx8i_write_hf_rope(json_t *object, const struct mx8_model_config *c);

enum mx8_status mx8i_read_llama4(const char *where, const json_t *object, struct mx8_model_config *c);
enum mx8_status mx8i_read_qwen3(const char *where, const json_t *object, struct mx8_model_config *c);
enum mx8_status mx8i_read_olmoe(const char *where, const json_t *object, struct mx8_model_config *c);
enum mx8_status mx8i_read_mixtral(const char *where, const json_t *object, struct mx8_model_config *c);
int mx8i_write_llama4(json_t *object, const struct mx8_model_config *c);
int mx8i_write_qwen3(json_t *object, const struct mx8_model_config *c);
int mx8i_write_olmoe(json_t *object, const struct mx8_model_config *c);
int mx8i_write_mixtral(json_t *object, const struct mx8_model_config *c);

/* What files under torchtitan's names say in their metadata beside MX8_CONFIG_KEY: a config.json's idle keys. */
#define MX8_IDLE_KEY "mx8.hf"

/* The rule's name with the source's prefix. */
void mx8i_format_weights_name(
    const struct mx8_weights *s, const struct mx8_hf_rule *rule, int64_t layer, int64_t expert, char name[128]);
const struct mx8_st_entry *mx8i_find_weights_entry(const struct mx8_weights *s, const char *name); /* NULL */

#endif
