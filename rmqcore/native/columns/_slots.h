/* Numbers for queues: the first queue that is asked for gets 0, the next other one 1, and so on. */
#ifndef RMQ_SLOTS_H
#define RMQ_SLOTS_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct rmq_topic {
    uint8_t *name;
    int32_t size;
};

struct rmq_slot {
    int32_t topic;
    int32_t queue_id;
};

/* Two open tables; an entry is a number plus one, 0 is free. At most half of each is used. */
struct rmq_slots {
    struct rmq_topic *topics;
    struct rmq_slot *slots;
    int32_t *topic_table;
    int32_t *slot_table;
    int32_t topic_count, topic_room; /* the table has twice as many places as there is room */
    int32_t slot_count, slot_room;
    int32_t last_topic, last_slot;
};

enum { RMQ_SLOTS_ROOM = 64, RMQ_NO_SLOT = -1, RMQ_NO_MEMORY = -2 };

static inline uint32_t rmq_slots_mix(uint64_t word) {
    word *= 0x9E3779B97F4A7C15ULL;
    return (uint32_t)(word >> 32);
}

static inline uint32_t rmq_topic_hash(const uint8_t *name, int32_t size) {
    uint64_t word, hash = (uint64_t)size;
    int32_t at = 0;
    for (; at + 8 <= size; at += 8) {
        memcpy(&word, name + at, 8);
        hash = (hash ^ word) * 0xFF51AFD7ED558CCDULL;
        hash ^= hash >> 29;
    }
    word = 0;
    memcpy(&word, name + at, (size_t)(size - at));
    return rmq_slots_mix(hash ^ word);
}

static inline uint32_t rmq_slot_hash(const struct rmq_slot *slot) {
    return rmq_slots_mix((uint64_t)(uint32_t)slot->topic << 32 | (uint32_t)slot->queue_id);
}

/* False without memory; what there was stays. */
static inline int rmq_slots_grow(void **items, size_t item_size, int32_t **table, int32_t *room) {
    int32_t more = *room ? 2 * *room : RMQ_SLOTS_ROOM;
    int32_t *fresh = (int32_t *)calloc(2 * (size_t)more, sizeof *fresh);
    void *grown = realloc(*items, (size_t)more * item_size);
    if (grown != NULL)
        *items = grown;
    if (fresh == NULL || grown == NULL) {
        free(fresh);
        return 0;
    }
    free(*table);
    *table = fresh;
    *room = more;
    return 1;
}

static inline void rmq_slots_enter(int32_t *table, int32_t room, uint32_t hash, int32_t number) {
    uint32_t mask = 2 * (uint32_t)room - 1, at = hash & mask;
    while (table[at] != 0)
        at = (at + 1) & mask;
    table[at] = number + 1;
}

/* The number of a topic that was added; RMQ_NO_SLOT for a strange one. */
static inline int32_t rmq_topic_find(struct rmq_slots *all, const uint8_t *name, int32_t size) {
    uint32_t mask = 2 * (uint32_t)all->topic_room - 1, at;
    if (all->topic_count == 0)
        return RMQ_NO_SLOT;
    for (at = rmq_topic_hash(name, size) & mask; all->topic_table[at] != 0; at = (at + 1) & mask) {
        const struct rmq_topic *topic = &all->topics[all->topic_table[at] - 1];
        if (topic->size == size && memcmp(topic->name, name, (size_t)size) == 0)
            return all->topic_table[at] - 1;
    }
    return RMQ_NO_SLOT;
}

/* Add a topic that has not been found; its number, or RMQ_NO_MEMORY. */
static inline int32_t rmq_topic_add(struct rmq_slots *all, const uint8_t *name, int32_t size) {
    struct rmq_topic *topic;
    if (all->topic_count == all->topic_room) {
        if (!rmq_slots_grow((void **)&all->topics, sizeof *topic, &all->topic_table,
                            &all->topic_room))
            return RMQ_NO_MEMORY;
        for (int32_t i = 0; i < all->topic_count; i++)
            rmq_slots_enter(all->topic_table, all->topic_room,
                            rmq_topic_hash(all->topics[i].name, all->topics[i].size), i);
    }
    topic = &all->topics[all->topic_count];
    topic->name = (uint8_t *)malloc((size_t)size);
    if (topic->name == NULL)
        return RMQ_NO_MEMORY;
    memcpy(topic->name, name, (size_t)size);
    topic->size = size;
    rmq_slots_enter(all->topic_table, all->topic_room, rmq_topic_hash(name, size),
                    all->topic_count);
    return all->topic_count++;
}

/* The number of a queue, a new one where it is asked for the first time, or RMQ_NO_MEMORY. */
static inline int32_t rmq_slot_of(struct rmq_slots *all, int32_t topic, int32_t queue_id) {
    struct rmq_slot wanted = {topic, queue_id};
    uint32_t mask, at;
    if (all->slot_count > 0) {
        const struct rmq_slot *last = &all->slots[all->last_slot];
        if (last->topic == topic && last->queue_id == queue_id)
            return all->last_slot;
        mask = 2 * (uint32_t)all->slot_room - 1;
        for (at = rmq_slot_hash(&wanted) & mask; all->slot_table[at] != 0; at = (at + 1) & mask) {
            const struct rmq_slot *slot = &all->slots[all->slot_table[at] - 1];
            if (slot->topic == topic && slot->queue_id == queue_id)
                return all->last_slot = all->slot_table[at] - 1;
        }
    }
    if (all->slot_count == all->slot_room) {
        if (!rmq_slots_grow((void **)&all->slots, sizeof wanted, &all->slot_table,
                            &all->slot_room))
            return RMQ_NO_MEMORY;
        for (int32_t i = 0; i < all->slot_count; i++)
            rmq_slots_enter(all->slot_table, all->slot_room, rmq_slot_hash(&all->slots[i]), i);
    }
    all->slots[all->slot_count] = wanted;
    rmq_slots_enter(all->slot_table, all->slot_room, rmq_slot_hash(&wanted), all->slot_count);
    return all->last_slot = all->slot_count++;
}

static inline void rmq_slots_free(struct rmq_slots *all) {
    for (int32_t i = 0; i < all->topic_count; i++)
        free(all->topics[i].name);
    free(all->topics);
    free(all->slots);
    free(all->topic_table);
    free(all->slot_table);
}

#endif
