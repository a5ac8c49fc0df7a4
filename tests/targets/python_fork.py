# Forks in a thread, and prints the process's id from a function of the child, which waits.
import os
import threading


def within():
    print(os.getpid(), flush=True)
    os.read(0, 1)
    os._exit(0)


def forks():
    if os.fork() == 0:
        within()


threading.Thread(target=threading.Event().wait, daemon=True).start()
thread = threading.Thread(target=forks)
thread.start()
thread.join()
os.wait()
