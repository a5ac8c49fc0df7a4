// The native methods of Natives.java.
#include <jni.h>

// Works in native code, above frames of Java.
static int work(int n) {
    volatile int sum = n;
    for (int i = 0; i < 40; i++) sum = sum * 31 + i;
    return sum;
}

JNIEXPORT jint JNICALL Java_Natives_through_10(JNIEnv *env, jclass class, jint n) {
    jmethodID callee = (*env)->GetStaticMethodID(env, class, "n_1", "(I)I");
    jint result = (*env)->CallStaticIntMethod(env, class, callee, n);
    if (!(*env)->ExceptionCheck(env)) return result + work(n);
    switch (n & 3) {
    case 0:
        // It leaves this frame.
        return 0;
    case 1:
        // It ends here.
        (*env)->ExceptionClear(env);
        return work(n);
    default:
        (*env)->ExceptionClear(env);
        jclass other = (*env)->FindClass(env, "java/lang/UnsupportedOperationException");
        (*env)->ThrowNew(env, other, "thrown by native code");
        return work(n);
    }
}

JNIEXPORT jint JNICALL Java_Natives_through_11(JNIEnv *env, jobject this, jint n) {
    jclass class = (*env)->GetObjectClass(env, this);
    jmethodID callee = (*env)->GetMethodID(env, class, "n_3", "(I)I");
    return (*env)->CallIntMethod(env, this, callee, n);
}
