// Runs the main method of a class in a Java machine that it embeds:
//   java_launcher [-cp PATH] [OPTION]... CLASS [ARGUMENT]...
#include <jni.h>
#include <stdio.h>
#include <string.h>

#define OPTIONS_MAX 64

int main(int argc, char **argv) {
    static char path[4096];
    JavaVMOption options[OPTIONS_MAX];
    int at = 1, count = 0;
    for (; at < argc && argv[at][0] == '-' && count < OPTIONS_MAX; at++) {
        options[count++].optionString = argv[at];
        if (!strcmp(argv[at], "-cp") && at + 1 < argc) {
            snprintf(path, sizeof path, "-Djava.class.path=%s", argv[++at]);
            options[count - 1].optionString = path;
        }
    }
    if (at >= argc) {
        fprintf(stderr, "usage: %s [-cp PATH] [OPTION]... CLASS [ARGUMENT]...\n", argv[0]);
        return 2;
    }
    JavaVMInitArgs arguments = {JNI_VERSION_1_8, count, options, JNI_FALSE};
    JavaVM *machine;
    JNIEnv *env;
    if (JNI_CreateJavaVM(&machine, (void **)&env, &arguments) != JNI_OK) return 1;
    jclass class = (*env)->FindClass(env, argv[at++]);
    jmethodID entry =
        class ? (*env)->GetStaticMethodID(env, class, "main", "([Ljava/lang/String;)V") : NULL;
    if (entry) {
        jclass text = (*env)->FindClass(env, "java/lang/String");
        jobjectArray all = (*env)->NewObjectArray(env, argc - at, text, NULL);
        for (int index = 0; at + index < argc; index++) {
            jstring argument = (*env)->NewStringUTF(env, argv[at + index]);
            (*env)->SetObjectArrayElement(env, all, index, argument);
        }
        (*env)->CallStaticVoidMethod(env, class, entry, all);
    }
    int failed = (*env)->ExceptionCheck(env);
    if (failed) (*env)->ExceptionDescribe(env);
    (*machine)->DestroyJavaVM(machine);
    return failed;
}
