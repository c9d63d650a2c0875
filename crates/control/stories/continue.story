# An owner goes on at another gateway. The older token stays good only until the newer is used.
index next=10
acquire owner=pg-a gw=1 token=1 req=1
write epoch=10 seq=1
continue owner=pg-a gw=2 token=1 new=2 req=2
state
----
i10: granted pg-a at m1 under e10, token 1, renewed i10, since 2026-11-18T11:06:40Z
i11: applied
i12: granted pg-a at m2 under e12, token 2 (or token 1), renewed i12, since 2026-11-18T11:06:40Z
pg-a at m2 under e12, token 2 (or token 1), renewed i12, since 2026-11-18T11:06:40Z; last s0 of e12; checkpoint none, none under way, 0 segments

# The answer was lost. The same request gives the same grant; so does it later.
continue owner=pg-a gw=2 token=1 new=3 req=2
----
i13: granted pg-a at m2 under e12, token 2 (or token 1), renewed i12, since 2026-11-18T11:06:40Z

# Asked under another request id with the token that it surely has: granted, since token 2 was never used. Token 2 stays:
# that request may be a late one of a process that is gone, and its successor may hold token 2.
continue owner=pg-a gw=3 token=1 new=4 req=3
continue owner=pg-a gw=2 token=2 new=5 req=4
----
i14: granted pg-a at m3 under e14, token 4 (or token 1) (or token 2), renewed i14, since 2026-11-18T11:06:40Z
i15: granted pg-a at m2 under e15, token 5 (or token 2) (or token 4), renewed i15, since 2026-11-18T11:06:40Z

# First use of token 5's epoch: all earlier tokens die, and so does every request of the old gateways.
write epoch=15 seq=1
continue owner=pg-a gw=1 token=4 new=6 req=5
write epoch=12 seq=1
write epoch=10 seq=2
----
i16: applied
i17: refused: the token is not that of the current lease (epoch e15, at gateway m2 since 2026-11-18T11:06:40Z): a newer token was used, or it never was this lease's
i18: refused: fenced: found epoch e12, the set is held under epoch e15
i19: refused: fenced: found epoch e10, the set is held under epoch e15

# A renewal is a use as well.
continue owner=pg-a gw=2 token=5 new=7 req=6
renew epoch=20
continue owner=pg-a gw=1 token=5 new=8 req=7
----
i20: granted pg-a at m2 under e20, token 7 (or token 5), renewed i20, since 2026-11-18T11:06:40Z
i21: renewed
i22: refused: the token is not that of the current lease (epoch e20, at gateway m2 since 2026-11-18T11:06:40Z): a newer token was used, or it never was this lease's

# Continuing is a use too: with token 9 shown, token 7 is behind.
continue owner=pg-a gw=1 token=7 new=9 req=8
continue owner=pg-a gw=2 token=9 new=10 req=9
continue owner=pg-a gw=3 token=7 new=11 req=10
continue owner=pg-a gw=3 token=9 new=12 req=11
----
i23: granted pg-a at m1 under e23, token 9 (or token 7), renewed i23, since 2026-11-18T11:06:40Z
i24: granted pg-a at m2 under e24, token 10 (or token 9), renewed i24, since 2026-11-18T11:06:40Z
i25: refused: the token is not that of the current lease (epoch e24, at gateway m2 since 2026-11-18T11:06:40Z): a newer token was used, or it never was this lease's
i26: granted pg-a at m3 under e26, token 12 (or token 9) (or token 10), renewed i26, since 2026-11-18T11:06:40Z

# Another owner's token helps nobody, and neither does a token that was drawn twice.
continue owner=pg-b gw=1 token=12 new=13 req=12
continue owner=pg-a gw=1 token=12 new=12 req=13
continue owner=pg-a gw=1 token=12 new=9 req=13
acquire owner=pg-b gw=1 token=12 req=13 force
----
i27: refused: the set is held by pg-a at gateway m3 since 2026-11-18T11:06:40Z (epoch e26); wait until the lease is released or expires, or take it by force
i28: refused: the new token is one that this lease has used before
i29: refused: the new token is one that this lease has used before
i30: refused: the new token is one that this lease has used before

# An older token may still give the set back while the newer was never used; then nothing is left to continue.
release epoch=26 token=7
release epoch=26 token=9
continue owner=pg-a gw=1 token=12 new=14 req=14
----
i31: refused: the token is not that of the current lease (epoch e26, at gateway m3 since 2026-11-18T11:06:40Z): a newer token was used, or it never was this lease's
i32: released
i33: refused: nobody holds the set: the last lease (epoch e26) was released; acquire it again
