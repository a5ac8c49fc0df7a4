"""How gunicorn serves `work_wsgi`: with one worker, which tells its port when it can serve."""
import ctypes
import signal

PR_SET_PDEATHSIG = 1

bind = "127.0.0.1:0"
workers = 1
loglevel = "error"
wsgi_app = "work_wsgi:application"


def post_fork(server, worker):
    # Otherwise a worker goes on for a while when the test has killed the first process.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def post_worker_init(worker):
    print("port", worker.sockets[0].getsockname()[1])
    print("ready", flush=True)
