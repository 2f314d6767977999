#include "json.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *at;
    int broken;
} Reader;

static Json *read_value(Reader *reader);

static void skip_space(Reader *reader)
{
    reader->at += strspn(reader->at, " \t\r\n");
}

/* Step over `expected`, if it comes next. */
static int accept(Reader *reader, const char *expected)
{
    size_t length = strlen(expected);
    skip_space(reader);
    if (strncmp(reader->at, expected, length) != 0)
        return 0;
    reader->at += length;
    return 1;
}

static void require(Reader *reader, const char *expected)
{
    if (!accept(reader, expected))
        reader->broken = 1;
}

static Json *new_value(JsonKind kind)
{
    Json *value = calloc(1, sizeof *value);
    if (value == NULL)
        abort();
    value->kind = kind;
    return value;
}

/* ---- texts --------------------------------------------------------------------------------- */

static size_t write_utf8(char *to, unsigned long code)
{
    if (code < 0x80) {
        to[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        to[0] = (char)(0xc0 | code >> 6);
        to[1] = (char)(0x80 | (code & 0x3f));
        return 2;
    }
    to[0] = (char)(0xe0 | code >> 12);
    to[1] = (char)(0x80 | (code >> 6 & 0x3f));
    to[2] = (char)(0x80 | (code & 0x3f));
    return 3;
}

/* The code after \u. No surrogate pairs: nothing a machine file says lies outside the basic plane. */
static unsigned long read_code(Reader *reader)
{
    char digits[5] = "";
    char *end;
    unsigned long code;
    strncpy(digits, reader->at, 4);
    code = strtoul(digits, &end, 16);
    if (end != digits + 4) {
        reader->broken = 1;
        return 0;
    }
    reader->at += 4;
    return code;
}

static size_t read_escape(Reader *reader, char *to)
{
    static const char letters[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    char letter = *reader->at;
    const char *found = letter != '\0' ? strchr(letters, letter) : NULL;
    if (letter == 'u') {
        reader->at++;
        return write_utf8(to, read_code(reader));
    }
    if (found == NULL) {
        reader->broken = 1;
        return 0;
    }
    reader->at++;
    *to = meant[found - letters];
    return 1;
}

/* What follows an opening quotation mark, up to the closing one. */
static char *read_text(Reader *reader)
{
    char *text = malloc(strlen(reader->at) + 1), *end = text; /* no escape is shorter than what it means */
    if (text == NULL)
        abort();
    while (*reader->at != '"' && *reader->at != '\0' && !reader->broken) {
        if (*reader->at != '\\') {
            *end++ = *reader->at++;
            continue;
        }
        reader->at++;
        end += read_escape(reader, end);
    }
    *end = '\0';
    if (*reader->at == '"')
        reader->at++;
    else
        reader->broken = 1;
    return text;
}

/* ---- values -------------------------------------------------------------------------------- */

static Json *read_items(Reader *reader, JsonKind kind, const char *close)
{
    Json *items = new_value(kind);
    Json **end = &items->first;
    if (accept(reader, close))
        return items;
    do {
        char *key = NULL;
        if (kind == JSON_OBJECT) {
            require(reader, "\"");
            key = read_text(reader);
            require(reader, ":");
        }
        *end = read_value(reader);
        (*end)->key = key;
        end = &(*end)->next;
    } while (!reader->broken && accept(reader, ","));
    require(reader, close);
    return items;
}

static Json *read_number(Reader *reader)
{
    Json *value = new_value(JSON_NUMBER);
    char *end;
    value->number = strtod(reader->at, &end);
    if (end == reader->at)
        reader->broken = 1;
    reader->at = end;
    return value;
}

static Json *read_value(Reader *reader)
{
    Json *value;
    if (accept(reader, "{"))
        return read_items(reader, JSON_OBJECT, "}");
    if (accept(reader, "["))
        return read_items(reader, JSON_LIST, "]");
    if (accept(reader, "\"")) {
        value = new_value(JSON_TEXT);
        value->text = read_text(reader);
        return value;
    }
    if (accept(reader, "null"))
        return new_value(JSON_NULL);
    if (accept(reader, "false"))
        return new_value(JSON_BOOLEAN);
    if (accept(reader, "true")) {
        value = new_value(JSON_BOOLEAN);
        value->number = 1;
        return value;
    }
    return read_number(reader);
}

Json *json_read(const char *text)
{
    Reader reader = {text, 0};
    Json *value = read_value(&reader);
    skip_space(&reader);
    if (!reader.broken && *reader.at == '\0')
        return value;
    json_free(value);
    return NULL;
}

void json_free(Json *value)
{
    while (value != NULL) {
        Json *next = value->next;
        json_free(value->first);
        free(value->text);
        free(value->key);
        free(value);
        value = next;
    }
}

/* ---- looking things up --------------------------------------------------------------------- */

const Json *json_member(const Json *value, const char *key)
{
    const Json *item = value != NULL && value->kind == JSON_OBJECT ? value->first : NULL;
    while (item != NULL && strcmp(item->key, key) != 0)
        item = item->next;
    return item;
}

const Json *json_element(const Json *value, size_t position)
{
    const Json *item = value != NULL && value->kind == JSON_LIST ? value->first : NULL;
    for (; item != NULL && position > 0; position--)
        item = item->next;
    return item;
}

size_t json_length(const Json *value)
{
    const Json *item = value != NULL ? value->first : NULL;
    size_t length = 0;
    for (; item != NULL; item = item->next)
        length++;
    return length;
}

const char *json_text(const Json *value)
{
    return value != NULL && value->kind == JSON_TEXT ? value->text : NULL;
}
