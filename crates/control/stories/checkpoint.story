# A checkpoint counts only in the term of its proposer, and only for the latest begin (SET-S5).
index next=10
segment term=1 object=1
begin term=2
begin term=1
segment term=1 object=1
segment term=1 object=2
segment term=1 object=1
segment term=2 object=3
state
----
i10: refused: no checkpoint is under way that a segment could belong to
i11: refused: proposed in term t2, but appended in term t1
i12: begun at t1-i12
i13: noted
i14: noted
i15: noted
i16: refused: proposed in term t2, but appended in term t1
free; last s0 of e0; checkpoint none, under way since t1-i12, 2 segments

# The end of something that was not begun here.
end term=1 begin=1-11 root=9
end term=2 begin=1-12 root=9
state
----
i17: refused: the checkpoint to end began at t1-i11, the latest began at t1-i12
i18: refused: proposed in term t2, but appended in term t1
free; last s0 of e0; checkpoint none, under way since t1-i12, 2 segments

# An acquire in between is not in the snapshot; it comes back by replay.
acquire owner=pg-a gw=1 token=1 req=1
end term=1 begin=1-12 root=9
state
replay-from-snapshot
----
i19: granted pg-a at m1 under e19, token 1, renewed i19, since 2026-11-18T11:06:40Z
i20: ended
pg-a at m1 under e19, token 1, renewed i19, since 2026-11-18T11:06:40Z; last s0 of e19; checkpoint upto t1-i12, none under way, 0 segments
snapshot upto t1-i12, epoch e0

# A second copy of the end is refused: it must not drop what a later begin has sealed.
end term=1 begin=1-12 root=9
begin term=1
end term=1 begin=1-12 root=9
segment term=1 object=4
state
----
i21: refused: the checkpoint to end began at t1-i12, and none is under way
i22: begun at t1-i22
i23: refused: the checkpoint to end began at t1-i12, the latest began at t1-i22
i24: noted
pg-a at m1 under e19, token 1, renewed i19, since 2026-11-18T11:06:40Z; last s0 of e19; checkpoint upto t1-i12, under way since t1-i22, 1 segments

# The leader changes in the middle. The new one begins anew: the old leader's end comes late and is refused, for its term as
# for its begin. What it had uploaded are orphans.
gateway gw=2
leader gw=2 term=2
begin term=2
end term=1 begin=1-22 root=10
end term=2 begin=1-22 root=10
segment term=1 object=5
end term=2 begin=2-26 root=11
state
----
t2-i25: first entry of the term
i26: begun at t2-i26
i27: refused: proposed in term t1, but appended in term t2
i28: refused: the checkpoint to end began at t1-i22, the latest began at t2-i26
i29: refused: proposed in term t1, but appended in term t2
i30: ended
pg-a at m1 under e19, token 1, renewed i19, since 2026-11-18T11:06:40Z; last s0 of e19; checkpoint upto t2-i26, none under way, 0 segments
