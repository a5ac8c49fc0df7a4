complete --keep-order --exclusive --command traceprof --arguments "(TRACEPROF_COMPLETE=fish traceprof -- (commandline --current-process --tokenize --cut-at-cursor) (commandline --current-token))"
