# Forced failover: the old host may be alive, and is fenced from that very entry on.
acquire owner=pg-a gw=1 token=1 req=1
write epoch=1 seq=1
acquire owner=pg-b gw=2 token=2 req=2
acquire owner=pg-b gw=2 token=2 req=2 force
write epoch=1 seq=2
renew epoch=1
continue owner=pg-a gw=1 token=1 new=3 req=3
release epoch=1 token=1
write epoch=4 seq=1
state
----
i1: granted pg-a at m1 under e1, token 1, renewed i1, since 2026-11-18T11:06:40Z
i2: applied
i3: refused: the set is held by pg-a at gateway m1 since 2026-11-18T11:06:40Z (epoch e1); wait until the lease is released or expires, or take it by force
i4: granted pg-b at m2 under e4, token 2, renewed i4, since 2026-11-18T11:06:40Z
i5: refused: fenced: found epoch e1, the set is held under epoch e4
i6: refused: fenced: found epoch e1, the set is held under epoch e4
i7: refused: the set is held by pg-b at gateway m2 since 2026-11-18T11:06:40Z (epoch e4); wait until the lease is released or expires, or take it by force
i8: refused: fenced: found epoch e1, the set is held under epoch e4
i9: applied
pg-b at m2 under e4, token 2, renewed i9, since 2026-11-18T11:06:40Z; last s1 of e4; checkpoint none, none under way, 0 segments

# Sent twice: the same grant.
acquire owner=pg-b gw=2 token=9 req=2 force
----
i10: granted pg-b at m2 under e4, token 2, renewed i9, since 2026-11-18T11:06:40Z

# The old side cannot come back by its old request either.
acquire owner=pg-a gw=1 token=1 req=1
----
i11: refused: the set is held by pg-b at gateway m2 since 2026-11-18T11:06:40Z (epoch e4); wait until the lease is released or expires, or take it by force
