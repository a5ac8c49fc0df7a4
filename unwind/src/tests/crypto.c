// Hand-written code that libcrypto selects by the processor's features, limited by OPENSSL_ia32cap.
// single_step.rs steps it instruction by instruction between the two marks (int3).
//
// The declarations are here so that only the library has to be installed.
#include <stdlib.h>
#include <string.h>

#define MARK() __asm__ volatile("int3" ::: "memory")

typedef unsigned char byte;
typedef struct any any;

extern byte *MD5(const byte *, size_t, byte *);
extern int AES_set_encrypt_key(const byte *, int, any *);
extern int AES_set_decrypt_key(const byte *, int, any *);
extern void AES_encrypt(const byte *, byte *, const any *);
extern void AES_decrypt(const byte *, byte *, const any *);
extern any *EVP_MD_CTX_new(void), *EVP_md5(void), *EVP_sha1(void), *EVP_sha256(void), *EVP_sha512(void);
extern any *EVP_sha3_256(void), *EVP_CIPHER_CTX_new(void), *EVP_aes_128_gcm(void), *EVP_aes_256_cbc(void);
extern any *EVP_aes_128_ctr(void), *EVP_aes_128_xts(void), *EVP_chacha20_poly1305(void);
extern int EVP_DigestInit_ex(any *, const any *, any *), EVP_DigestUpdate(any *, const void *, size_t);
extern int EVP_DigestFinal_ex(any *, byte *, unsigned *);
extern int EVP_CipherInit_ex(any *, const any *, any *, const byte *, const byte *, int);
extern int EVP_CipherUpdate(any *, byte *, int *, const byte *, int);
extern int EVP_CipherFinal_ex(any *, byte *, int *);
extern any *BN_new(void), *BN_CTX_new(void), *EC_KEY_new_by_curve_name(int);
extern int BN_hex2bn(any **, const char *), BN_sqr(any *, const any *, any *);
extern int BN_mul(any *, const any *, const any *, any *), BN_div(any *, any *, const any *, const any *, any *);
extern int EC_KEY_generate_key(any *), ECDSA_sign(int, const byte *, int, byte *, unsigned *, any *);

static void needs(int right) {
    if (!right) exit(3);
}

static byte text[800], other[1024], key[64] = "a key of sixty-four bytes, of which most need only the first";

static void hash(const any *kind) {
    static any *state;
    unsigned length;
    if (!state) needs((state = EVP_MD_CTX_new()) != 0);
    needs(EVP_DigestInit_ex(state, kind, 0) && EVP_DigestUpdate(state, text, sizeof text));
    needs(EVP_DigestFinal_ex(state, other, &length));
}

static void hashes(void) {
    const any *kinds[] = {EVP_md5(), EVP_sha1(), EVP_sha256(), EVP_sha512(), EVP_sha3_256()};
    for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++) hash(kinds[i]);
}

static void cipher(const any *kind) {
    for (int encrypt = 0; encrypt < 2; encrypt++) {
        static any *state;
        int length;
        if (!state) needs((state = EVP_CIPHER_CTX_new()) != 0);
        needs(EVP_CipherInit_ex(state, kind, 0, key, key + 32, encrypt));
        needs(EVP_CipherUpdate(state, other, &length, text, sizeof text));
        EVP_CipherFinal_ex(state, other, &length);
    }
}

static void ciphers(void) {
    const any *kinds[] = {EVP_aes_128_gcm(), EVP_aes_256_cbc(), EVP_aes_128_ctr(), EVP_aes_128_xts(),
                          EVP_chacha20_poly1305()};
    for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++) cipher(kinds[i]);
    static long expanded[64];
    AES_set_encrypt_key(key, 128, (any *)expanded);
    AES_encrypt(text, other, (any *)expanded);
    AES_set_decrypt_key(key, 256, (any *)expanded);
    AES_decrypt(text, other, (any *)expanded);
}

// Returns an odd number with this many bits.
static any *number(unsigned bits, char first) {
    char digits[1025];
    memset(digits, 'B', bits / 4);
    digits[0] = first;
    digits[bits / 4] = 0;
    any *made = 0;
    needs(BN_hex2bn(&made, digits) > 0);
    return made;
}

static any *work, *result, *rest;

static void numbers(void) {
    static any *wide, *narrow;
    if (!wide) {
        wide = number(2048, 'A'), narrow = number(512, '7');
    }
    needs(BN_mul(result, wide, narrow, work) && BN_sqr(result, wide, work) && BN_sqr(result, narrow, work));
    needs(BN_div(result, rest, wide, narrow, work));
}

static void curves(void) {
    static any *pair;
    unsigned length;
    if (!pair) needs((pair = EC_KEY_new_by_curve_name(415)) && EC_KEY_generate_key(pair));
    needs(ECDSA_sign(0, text, 32, other, &length, pair));
}

int main(int count, char **arguments) {
    memset(text, 'x', sizeof text);
    needs((work = BN_CTX_new()) && (result = BN_new()) && (rest = BN_new()));
    // In the first round the library initializes itself.
    for (int round = 0; round < 2; round++) {
        if (round) MARK();
        for (const char *part = count > 1 ? arguments[1] : ""; *part; part++) {
            if (*part == 'h') hashes();
            if (*part == 'c') ciphers();
            if (*part == 'n') numbers();
            if (*part == 'e') curves();
        }
    }
    MARK();
    return 0;
}
