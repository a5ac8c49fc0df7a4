# A shell that becomes Python: works first, then executes the command.
n=0
while [ $n -lt 20000 ]; do n=$((n + 1)); done
exec "$@"
