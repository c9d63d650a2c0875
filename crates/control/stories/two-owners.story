# Two owners want one set. The second is told who has it, where, and since when; it gets the set once it is given back.
acquire owner=pg-a gw=1 token=1 req=1
write epoch=1 seq=1
acquire owner=pg-b gw=1 token=2 req=2
----
i1: granted pg-a at m1 under e1, token 1, renewed i1, since 2026-11-18T11:06:40Z
i2: applied
i3: refused: the set is held by pg-a at gateway m1 since 2026-11-18T11:06:40Z (epoch e1); wait until the lease is released or expires, or take it by force

# A second process of the same owner is no better off: an owner's name is no proof.
acquire owner=pg-a gw=1 token=3 req=3
----
i4: refused: the set is held by pg-a at gateway m1 since 2026-11-18T11:06:40Z (epoch e1); wait until the lease is released or expires, or take it by force

# The answer got lost, and the first asks again: the same grant, not a new one (R12).
acquire owner=pg-a gw=1 token=4 req=1
----
i5: granted pg-a at m1 under e1, token 1, renewed i2, since 2026-11-18T11:06:40Z

# Nobody but the holder gives it back.
release epoch=1 token=2
release epoch=1 token=1
state
----
i6: refused: the token is not that of the current lease (epoch e1, at gateway m1 since 2026-11-18T11:06:40Z): a newer token was used, or it never was this lease's
i7: released
free; last s1 of e1; checkpoint none, none under way, 0 segments

# Giving it back twice is fine. A late copy of the request that had been granted must not take the set again.
release epoch=1 token=1
acquire owner=pg-a gw=1 token=5 req=1
----
i8: released
i9: refused: this request was granted before and its lease is over (the last epoch is e1): repeat it with a new request id

# The other owner gets it, under a new epoch; what the first still sends is fenced.
acquire owner=pg-b gw=1 token=2 req=4
write epoch=1 seq=2
renew epoch=1
release epoch=1
write epoch=11 seq=1
state
----
i10: granted pg-b at m1 under e10, token 2, renewed i10, since 2026-11-18T11:06:40Z
i11: refused: fenced: found epoch e1, the set is held under epoch e10
i12: refused: fenced: found epoch e1, the set is held under epoch e10
i13: refused: fenced: found epoch e1, the set is held under epoch e10
i14: refused: fenced: found epoch e11, the set is held under epoch e10
pg-b at m1 under e10, token 2, renewed i10, since 2026-11-18T11:06:40Z; last s0 of e10; checkpoint none, none under way, 0 segments

# A lease must live for a sensible time.
release epoch=11
acquire owner=pg-b gw=1 token=6 req=5 ttl=99
acquire owner=pg-b gw=1 token=6 req=5 ttl=600001
----
i15: refused: fenced: found epoch e11, the set is held under epoch e10
i16: refused: lease time to live: found 99 ms, expected 100 to 600000 ms
i17: refused: lease time to live: found 600001 ms, expected 100 to 600000 ms
