/* The Arrow C data interface: structures as the Arrow project fixes them, and how columns of ours
 * become such structures.
 *
 * The memory of a batch is owned by one counted block list. Every exported array, children
 * included, holds one reference: a consumer may keep a child and release its parent, from any
 * thread and without the GIL. Who releases last gives the memory back to the pool it came from.
 * https://arrow.apache.org/docs/format/CDataInterface.html
 */
#ifndef RMQ_ARROW_H
#define RMQ_ARROW_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifndef ARROW_C_DATA_INTERFACE
#define ARROW_C_DATA_INTERFACE

#define ARROW_FLAG_NULLABLE 2

struct ArrowSchema {
    const char *format;
    const char *name;
    const char *metadata;
    int64_t flags;
    int64_t n_children;
    struct ArrowSchema **children;
    struct ArrowSchema *dictionary;
    void (*release)(struct ArrowSchema *);
    void *private_data;
};

struct ArrowArray {
    int64_t length;
    int64_t null_count;
    int64_t offset;
    int64_t n_buffers;
    int64_t n_children;
    const void **buffers;
    struct ArrowArray **children;
    struct ArrowArray *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
};

#endif

#ifndef ARROW_C_STREAM_INTERFACE
#define ARROW_C_STREAM_INTERFACE

struct ArrowArrayStream {
    int (*get_schema)(struct ArrowArrayStream *, struct ArrowSchema *out);
    int (*get_next)(struct ArrowArrayStream *, struct ArrowArray *out);
    const char *(*get_last_error)(struct ArrowArrayStream *);
    void (*release)(struct ArrowArrayStream *);
    void *private_data;
};

#endif

#define RMQ_BLOCKS_MAX 96

/* A stretch of memory; NULL and 0 where there is none. */
struct rmq_block {
    void *at;
    int64_t size;
};

/* Memory of one batch. */
struct rmq_blocks {
    int references;
    struct rmq_pool *pool;
    struct rmq_block blocks[RMQ_BLOCKS_MAX];
};

/* Where the batches of one maker get their memory. That of one released batch waits here for the
 * next, its pages touched already; of any more, and when the maker is gone, it is freed. The maker
 * and every batch hold the pool. */
struct rmq_pool {
    int references;
    int closed;
    struct rmq_blocks *spare;
};

/* One column, or the whole batch as a struct column. Names and formats outlive every batch. */
struct rmq_column {
    const char *name;
    const char *format;
    int nullable;
    int buffer_count;
    int64_t length;
    int64_t null_count;
    const void *buffers[3];
    int child_count;
    struct rmq_column *children;
};

/* False without memory; what the block holds stays. */
static inline int rmq_block_grow(struct rmq_block *block, int64_t size) {
    void *grown;
    if (size <= block->size)
        return 1;
    grown = realloc(block->at, (size_t)size);
    if (grown == NULL)
        return 0;
    block->at = grown;
    block->size = size;
    return 1;
}

static inline void rmq_blocks_free(struct rmq_blocks *list) {
    if (list == NULL)
        return;
    for (int i = 0; i < RMQ_BLOCKS_MAX; i++)
        free(list->blocks[i].at);
    free(list);
}

static inline struct rmq_blocks *rmq_pool_swap(struct rmq_pool *pool, struct rmq_blocks *list) {
    return __atomic_exchange_n(&pool->spare, list, __ATOMIC_ACQ_REL);
}

static inline void rmq_pool_drop(struct rmq_pool *pool) {
    if (__atomic_sub_fetch(&pool->references, 1, __ATOMIC_ACQ_REL) != 0)
        return;
    rmq_blocks_free(pool->spare);
    free(pool);
}

static inline struct rmq_pool *rmq_pool_new(void) {
    struct rmq_pool *pool = (struct rmq_pool *)calloc(1, sizeof *pool);
    if (pool != NULL)
        pool->references = 1;
    return pool;
}

/* By the maker, which asks for no more memory. */
static inline void rmq_pool_close(struct rmq_pool *pool) {
    __atomic_store_n(&pool->closed, 1, __ATOMIC_RELEASE);
    rmq_blocks_free(rmq_pool_swap(pool, NULL));
    rmq_pool_drop(pool);
}

/* Memory for a batch, with one reference: that of one before, or empty blocks; NULL for none. */
static inline struct rmq_blocks *rmq_blocks_new(struct rmq_pool *pool) {
    struct rmq_blocks *list = rmq_pool_swap(pool, NULL);
    if (list == NULL)
        list = (struct rmq_blocks *)calloc(1, sizeof *list);
    if (list == NULL)
        return NULL;
    __atomic_add_fetch(&pool->references, 1, __ATOMIC_RELAXED);
    list->references = 1;
    list->pool = pool;
    return list;
}

static inline void rmq_blocks_hold(struct rmq_blocks *list) {
    __atomic_add_fetch(&list->references, 1, __ATOMIC_RELAXED);
}

static inline void rmq_blocks_drop(struct rmq_blocks *list) {
    struct rmq_pool *pool = list->pool;
    if (__atomic_sub_fetch(&list->references, 1, __ATOMIC_ACQ_REL) != 0)
        return;
    if (!__atomic_load_n(&pool->closed, __ATOMIC_ACQUIRE))
        list = rmq_pool_swap(pool, list);
    rmq_blocks_free(list);
    rmq_pool_drop(pool);
}

struct rmq_array_node {
    struct rmq_blocks *owner;
    const void *buffers[3];
    struct ArrowArray **pointers;
    struct ArrowArray *children;
};

static void rmq_release_array(struct ArrowArray *array) {
    struct rmq_array_node *node = (struct rmq_array_node *)array->private_data;
    for (int64_t i = 0; i < array->n_children; i++)
        if (array->children[i]->release != NULL)
            array->children[i]->release(array->children[i]);
    rmq_blocks_drop(node->owner);
    free(node->pointers);
    free(node->children);
    free(node);
    array->release = NULL;
}

/* 0, or -1 when there is no memory; nothing is left to release then. */
static int rmq_export_array(struct ArrowArray *out, const struct rmq_column *column,
                            struct rmq_blocks *owner) {
    size_t count = (size_t)column->child_count;
    struct rmq_array_node *node = (struct rmq_array_node *)calloc(1, sizeof *node);
    memset(out, 0, sizeof *out);
    if (node == NULL)
        return -1;
    node->pointers = (struct ArrowArray **)calloc(count + 1, sizeof *node->pointers);
    node->children = (struct ArrowArray *)calloc(count + 1, sizeof *node->children);
    if (node->pointers == NULL || node->children == NULL) {
        free(node->pointers);
        free(node->children);
        free(node);
        return -1;
    }
    rmq_blocks_hold(owner);
    node->owner = owner;
    memcpy(node->buffers, column->buffers, sizeof node->buffers);
    out->length = column->length;
    out->null_count = column->null_count;
    out->n_buffers = column->buffer_count;
    out->buffers = node->buffers;
    out->children = node->pointers;
    out->release = rmq_release_array;
    out->private_data = node;
    for (size_t i = 0; i < count; i++) {
        node->pointers[i] = &node->children[i];
        if (rmq_export_array(&node->children[i], &column->children[i], owner) != 0) {
            rmq_release_array(out);
            return -1;
        }
        out->n_children++;
    }
    return 0;
}

struct rmq_schema_node {
    struct ArrowSchema **pointers;
    struct ArrowSchema *children;
};

static void rmq_release_schema(struct ArrowSchema *schema) {
    struct rmq_schema_node *node = (struct rmq_schema_node *)schema->private_data;
    for (int64_t i = 0; i < schema->n_children; i++)
        if (schema->children[i]->release != NULL)
            schema->children[i]->release(schema->children[i]);
    free(node->pointers);
    free(node->children);
    free(node);
    schema->release = NULL;
}

static int rmq_export_schema(struct ArrowSchema *out, const struct rmq_column *column) {
    size_t count = (size_t)column->child_count;
    struct rmq_schema_node *node = (struct rmq_schema_node *)calloc(1, sizeof *node);
    memset(out, 0, sizeof *out);
    if (node == NULL)
        return -1;
    node->pointers = (struct ArrowSchema **)calloc(count + 1, sizeof *node->pointers);
    node->children = (struct ArrowSchema *)calloc(count + 1, sizeof *node->children);
    if (node->pointers == NULL || node->children == NULL) {
        free(node->pointers);
        free(node->children);
        free(node);
        return -1;
    }
    out->format = column->format;
    out->name = column->name;
    out->flags = column->nullable ? ARROW_FLAG_NULLABLE : 0;
    out->children = node->pointers;
    out->release = rmq_release_schema;
    out->private_data = node;
    for (size_t i = 0; i < count; i++) {
        node->pointers[i] = &node->children[i];
        if (rmq_export_schema(&node->children[i], &column->children[i]) != 0) {
            rmq_release_schema(out);
            return -1;
        }
        out->n_children++;
    }
    return 0;
}

#endif
