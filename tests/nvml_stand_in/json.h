/* A JSON document read into a tree: as much of RFC 8259 as Python's json.dumps writes. */
#ifndef JSON_H
#define JSON_H

#include <stddef.h>

typedef enum { JSON_NULL, JSON_BOOLEAN, JSON_NUMBER, JSON_TEXT, JSON_LIST, JSON_OBJECT } JsonKind;

typedef struct Json {
    JsonKind kind;
    double number;      /* JSON_NUMBER; JSON_BOOLEAN: 0 or 1 */
    char *text;         /* JSON_TEXT, in UTF-8 */
    char *key;          /* the member's name, if this is a member of an object */
    struct Json *first; /* first element or member of a list or an object */
    struct Json *next;  /* the element or member after this one */
} Json;

/* NULL if `text` is no JSON document; otherwise the caller frees it. */
Json *json_read(const char *text);
void json_free(Json *value);

/* All of these give NULL, or 0, for what is not there; `value` may be NULL. */
const Json *json_member(const Json *value, const char *key);
const Json *json_element(const Json *value, size_t position);
size_t json_length(const Json *value);
const char *json_text(const Json *value);

#endif
