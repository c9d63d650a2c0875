# A snapshot of root 1 is pinned for a clone, which is to be set 7. The snapshot goes, and its root stays.
create-volume name=v sectors=8
snapshot name=monday req=5
begin term=1
end term=1 begin=1-3 root=1
pin clone=7 snapshot=monday made-by=5 req=77
delete-snapshot name=monday made-by=5
begin term=1
end term=1 begin=1-7 root=2
kept
----

# The answer was lost and the call is made again: the same pin, though the snapshot is gone. Another request finds no snapshot.
pin clone=7 snapshot=monday made-by=5 req=77
pin clone=8 snapshot=monday made-by=5 req=78
----

# Set 7 became another set: the pin is judged to be over. A copy that judged another number, or another request, lets go of nothing.
unpin clone=8 req=77
unpin clone=7 req=78
kept
unpin clone=7 req=77
kept
----

# Once more, late: nothing is there, as was asked.
unpin clone=7 req=77
kept
----
