/*
 * The native methods of TraceprofContext.java. To build them, with JAVA as the directory of the JDK:
 *
 *     cc -O2 -fPIC -Iinclude -IJAVA/include -IJAVA/include/linux -shared -pthread java/traceprof_context_jni.c -o libtraceprof_context_jni.so
 */
#include <jni.h>

#include "traceprof_context.h"

/* More bytes than a text or a name may have, so that the library notices one that is too long. */
#define ROOM (TRACEPROF_CONTEXT_TEXT_MAX + 5)

static void copy(JNIEnv *env, jbyteArray from, char *to) {
    jsize len = (*env)->GetArrayLength(env, from);
    len = len < ROOM - 1 ? len : ROOM - 1;
    (*env)->GetByteArrayRegion(env, from, 0, len, (jbyte *)to);
    to[len] = 0;
}

JNIEXPORT jobject JNICALL Java_traceprof_TraceprofContext_here0(JNIEnv *env, jclass self) {
    (void)self;
    return (*env)->NewDirectByteBuffer(env, traceprof_context_here(), sizeof(traceprof_context));
}

JNIEXPORT jboolean JNICALL Java_traceprof_TraceprofContext_isAvailable0(JNIEnv *env, jclass self) {
    (void)env;
    (void)self;
    return traceprof_context_is_available() ? JNI_TRUE : JNI_FALSE;
}

JNIEXPORT jint JNICALL Java_traceprof_TraceprofContext_tag0(JNIEnv *env, jclass self, jbyteArray name,
                                                            jboolean is_text) {
    char bytes[ROOM];
    (void)self;
    copy(env, name, bytes);
    return is_text ? traceprof_context_tag_text(bytes) : traceprof_context_tag_number(bytes);
}

JNIEXPORT jint JNICALL Java_traceprof_TraceprofContext_text0(JNIEnv *env, jclass self, jbyteArray text) {
    char bytes[ROOM];
    (void)self;
    copy(env, text, bytes);
    return (jint)traceprof_context_text(bytes);
}
