# R2: under the current epoch, in order, each once.
write epoch=1 seq=1
acquire owner=pg-a gw=1 token=1 req=1
write epoch=2 seq=2
write epoch=2 seq=0
write epoch=2 seq=1
write epoch=2 seq=2
----
i1: refused: fenced: found epoch e1, nobody holds the set
i2: granted pg-a at m1 under e2, token 1, renewed i2, since 2026-11-18T11:06:40Z
i3: refused: write out of order: found number s2, expected s1
i4: refused: write out of order: found number s0, expected s1
i5: applied
i6: applied

# The proposal of number 2 timed out, and was proposed again: success, without effect. So was number 1.
write epoch=2 seq=2
write epoch=2 seq=1
write epoch=2 seq=3
----
i7: success, nothing changed (applied before)
i8: success, nothing changed (applied before)
i9: applied

# A gap is refused, and it stays refused until the gap is closed.
write epoch=2 seq=5
write epoch=2 seq=4
write epoch=2 seq=5
----
i10: refused: write out of order: found number s5, expected s4
i11: applied
i12: applied

# A refused write leaves no trace: not even a renewal.
state
write epoch=2 seq=7
write epoch=1 seq=6
state
----
pg-a at m1 under e2, token 1, renewed i12, since 2026-11-18T11:06:40Z; last s5 of e2; checkpoint none, none under way, 0 segments
i13: refused: write out of order: found number s7, expected s6
i14: refused: fenced: found epoch e1, the set is held under epoch e2
pg-a at m1 under e2, token 1, renewed i12, since 2026-11-18T11:06:40Z; last s5 of e2; checkpoint none, none under way, 0 segments

# A new epoch counts from 1 again. Nothing of the old one lands, whatever its number.
continue owner=pg-a gw=2 token=1 new=2 req=2
write epoch=2 seq=6
write epoch=2 seq=1
write epoch=15 seq=6
write epoch=15 seq=1
state
----
i15: granted pg-a at m2 under e15, token 2 (or token 1), renewed i15, since 2026-11-18T11:06:40Z
i16: refused: fenced: found epoch e2, the set is held under epoch e15
i17: refused: fenced: found epoch e2, the set is held under epoch e15
i18: refused: write out of order: found number s6, expected s1
i19: applied
pg-a at m2 under e15, token 2, renewed i19, since 2026-11-18T11:06:40Z; last s1 of e15; checkpoint none, none under way, 0 segments
