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
i1: changed v1
i2: snapshot asked for
i3: begun at t1-i3
i4: ended
i5: pinned root 1
i6: snapshot deleted, was there: true
i7: begun at t1-i7
i8: ended
kept roots [2, 1]

# The answer was lost and the call is made again: the same pin, though the snapshot is gone. Another request finds no snapshot.
pin clone=7 snapshot=monday made-by=5 req=77
pin clone=8 snapshot=monday made-by=5 req=78
----
i9: pinned root 1
i10: refused: the set has no finished snapshot monday of request 00000000000000000000000000000005; list the snapshots and choose again

# Set 7 became another set: the pin is judged to be over. A copy that judged another number, or another request, lets go of nothing.
unpin clone=8 req=77
unpin clone=7 req=78
kept
unpin clone=7 req=77
kept
----
i11: not pinned for that number by that request
i12: not pinned for that number by that request
kept roots [2, 1]
i13: not pinned for that number by that request
kept roots [2]

# Once more, late: nothing is there, as was asked.
unpin clone=7 req=77
kept
----
i14: not pinned for that number by that request
kept roots [2]
