/* CRC-32 (zlib polynomial), the fastest way this processor has, chosen once at import.
 *
 * x86-64: carry-less multiplication, folding 64 bytes a step (Gopal et al., "Fast CRC Computation
 * for Generic Polynomials Using PCLMULQDQ Instruction", 2009; constants of its bit-reflected case).
 * arm64: the CRC32 instructions. Elsewhere, and for short tails: eight tables.
 * All ways give the same value; the tables are the one that the others are tested against.
 */
#ifndef RMQ_CRC32_H
#define RMQ_CRC32_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static uint32_t rmq_crc32_tables[8][256];

static uint32_t rmq_crc32_by_table(uint32_t crc, const uint8_t *p, size_t size) {
    crc = ~crc;
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    while (size >= 8) {
        uint32_t low, high;
        memcpy(&low, p, 4);
        memcpy(&high, p + 4, 4);
        low ^= crc;
        crc = rmq_crc32_tables[7][low & 0xff] ^ rmq_crc32_tables[6][(low >> 8) & 0xff] ^
              rmq_crc32_tables[5][(low >> 16) & 0xff] ^ rmq_crc32_tables[4][low >> 24] ^
              rmq_crc32_tables[3][high & 0xff] ^ rmq_crc32_tables[2][(high >> 8) & 0xff] ^
              rmq_crc32_tables[1][(high >> 16) & 0xff] ^ rmq_crc32_tables[0][high >> 24];
        p += 8;
        size -= 8;
    }
#endif
    while (size--) crc = (crc >> 8) ^ rmq_crc32_tables[0][(crc ^ *p++) & 0xff];
    return ~crc;
}

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

/* Asked of the processor: __builtin_cpu_supports needs a library that not every compiler has. */
static int rmq_crc32_can_fold(void) {
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_PCLMUL) && (ecx & bit_SSE4_1);
}

#define RMQ_FOLD(lane, keys)                                                  \
    _mm_xor_si128(_mm_clmulepi64_si128((lane), (keys), 0x00),                 \
                  _mm_clmulepi64_si128((lane), (keys), 0x11))
#define RMQ_LOAD(at) _mm_loadu_si128((const __m128i *)(at))

__attribute__((target("sse4.1,pclmul"))) static uint32_t
rmq_crc32_by_folding(uint32_t crc, const uint8_t *p, size_t size) {
    if (size < 64) return rmq_crc32_by_table(crc, p, size);
    const __m128i by_64 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4);
    const __m128i by_16 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
    const __m128i to_64 = _mm_set_epi64x(0, 0x163cd6124);
    const __m128i barrett = _mm_set_epi64x(0x1f7011641, 0x1db710641);
    const __m128i low_words = _mm_setr_epi32(-1, 0, -1, 0);

    __m128i a = _mm_xor_si128(RMQ_LOAD(p), _mm_cvtsi32_si128((int)~crc));
    __m128i b = RMQ_LOAD(p + 16), c = RMQ_LOAD(p + 32), d = RMQ_LOAD(p + 48);
    for (p += 64, size -= 64; size >= 64; p += 64, size -= 64) {
        a = _mm_xor_si128(RMQ_FOLD(a, by_64), RMQ_LOAD(p));
        b = _mm_xor_si128(RMQ_FOLD(b, by_64), RMQ_LOAD(p + 16));
        c = _mm_xor_si128(RMQ_FOLD(c, by_64), RMQ_LOAD(p + 32));
        d = _mm_xor_si128(RMQ_FOLD(d, by_64), RMQ_LOAD(p + 48));
    }
    a = _mm_xor_si128(RMQ_FOLD(a, by_16), b);
    a = _mm_xor_si128(RMQ_FOLD(a, by_16), c);
    a = _mm_xor_si128(RMQ_FOLD(a, by_16), d);
    for (; size >= 16; p += 16, size -= 16)
        a = _mm_xor_si128(RMQ_FOLD(a, by_16), RMQ_LOAD(p));

    a = _mm_xor_si128(_mm_srli_si128(a, 8), _mm_clmulepi64_si128(a, by_16, 0x10));
    a = _mm_xor_si128(_mm_srli_si128(a, 4),
                      _mm_clmulepi64_si128(_mm_and_si128(a, low_words), to_64, 0x00));
    b = _mm_clmulepi64_si128(_mm_and_si128(a, low_words), barrett, 0x10);
    b = _mm_clmulepi64_si128(_mm_and_si128(b, low_words), barrett, 0x00);
    crc = ~(uint32_t)_mm_extract_epi32(_mm_xor_si128(a, b), 1);
    return size ? rmq_crc32_by_table(crc, p, size) : crc;
}
#endif

#if defined(__aarch64__)
#include <arm_acle.h>
#if defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

__attribute__((target("+crc"))) static uint32_t
rmq_crc32_by_instruction(uint32_t crc, const uint8_t *p, size_t size) {
    crc = ~crc;
    for (; size >= 8; p += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        crc = __crc32d(crc, word);
    }
    while (size--) crc = __crc32b(crc, *p++);
    return ~crc;
}
#endif

typedef uint32_t (*rmq_crc32_way)(uint32_t, const uint8_t *, size_t);
static rmq_crc32_way rmq_crc32_chosen = rmq_crc32_by_table;
static const char *rmq_crc32_name = "tables";

static void rmq_crc32_init(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (crc & 1 ? 0xedb88320u : 0);
        rmq_crc32_tables[0][byte] = crc;
    }
    for (int table = 1; table < 8; table++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t crc = rmq_crc32_tables[table - 1][byte];
            rmq_crc32_tables[table][byte] = (crc >> 8) ^ rmq_crc32_tables[0][crc & 0xff];
        }
#if defined(__x86_64__)
    if (rmq_crc32_can_fold()) {
        rmq_crc32_chosen = rmq_crc32_by_folding;
        rmq_crc32_name = "carry-less multiply";
    }
#elif defined(__aarch64__)
#if defined(__linux__)
    if (getauxval(AT_HWCAP) & HWCAP_CRC32)
#endif
    {
        rmq_crc32_chosen = rmq_crc32_by_instruction;
        rmq_crc32_name = "crc32 instructions";
    }
#endif
}

static inline uint32_t rmq_crc32(uint32_t crc, const uint8_t *p, size_t size) {
    return rmq_crc32_chosen(crc, p, size);
}

#endif
