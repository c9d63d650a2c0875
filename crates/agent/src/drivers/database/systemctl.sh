#!/bin/bash
# Stands in for systemctl, for one unit that is a PostgreSQL, in the tests. It keeps its state in a directory, and starts and stops a real PostgreSQL.
#   delay N   a start waits for N seconds before there is any process of PostgreSQL's     broken   a start fails
#   enabled   the unit is                                                                 restart  Restart=always
#   job       a start waits or is under way: the number of its process                    failed   the last start failed
S=@STATE@

there() { # PostgreSQL's first process
  local p
  for p in $(ls /proc | grep -E '^[0-9]+$'); do
    [ "$(readlink "/proc/$p/cwd" 2>/dev/null)" = "@DATA@" ] && [ "$(cat "/proc/$p/comm" 2>/dev/null)" = postgres ] && return 0
  done
  return 1
}
kill_all() {
  local p
  for p in $(ls /proc | grep -E '^[0-9]+$'); do
    [ "$(readlink "/proc/$p/cwd" 2>/dev/null)" = "@DATA@" ] && kill -9 "$p" 2>/dev/null
  done
}
end_job() {
  local p
  p=$(cat $S/job 2>/dev/null) && kill -9 -- "-$p" 2>/dev/null
  rm -f $S/job
}

word=$1
shift
no_block=0
for arg in "$@"; do [ "$arg" = --no-block ] && no_block=1; done

case $word in
show)
  state=inactive sub=dead job=
  [ -e $S/failed ] && state=failed sub=failed
  if there; then state=active sub=running; fi
  if [ -e $S/job ]; then job=77; [ $state = active ] && state=activating sub=start; fi
  file=disabled
  [ -e $S/enabled ] && file=enabled
  restart=no
  [ -e $S/restart ] && restart=always
  result=success
  [ $state = failed ] && result=exit-code
  printf '%s\n' LoadState=loaded ActiveState=$state SubState=$sub UnitFileState=$file Restart=$restart Result=$result Job=$job WantedBy= RequiredBy= UpheldBy= BoundBy= TriggeredBy=
  ;;
reset-failed) rm -f $S/failed ;;
start)
  [ -e $S/job ] && exit 0
  setsid bash -c '
    until [ -s '$S'/job ]; do sleep 0.01; done
    sleep $(cat '$S'/delay 2>/dev/null || echo 0)
    if [ -e '$S'/broken ]; then touch '$S'/failed
    else cd /; @PG_CTL@ start -W -l @LOG@ || touch '$S'/failed
      until [ -e @DATA@/postmaster.pid ] || [ -e '$S'/failed ]; do sleep 0.01; done
    fi
    rm -f '$S'/job' </dev/null >/dev/null 2>&1 &
  echo $! > $S/job.new && mv $S/job.new $S/job
  ;;
stop)
  end_job
  if there; then
    if [ $no_block = 1 ]; then (cd /; @PG_CTL@ stop -m fast </dev/null >/dev/null 2>&1 &)
    else cd /; @PG_CTL@ stop -m fast; fi
  fi
  ;;
kill) kill_all ;;
*) echo "unknown: $word" >&2; exit 1 ;;
esac
