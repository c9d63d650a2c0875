# A request is granted once (R12). The set was released, granted to another, and released again: a copy of the first request
# that comes as late as that must not take it, and neither does a copy of the second.
acquire owner=pg-a gw=1 token=1 req=1
release epoch=1 token=1
acquire owner=pg-b gw=1 token=2 req=2
release epoch=3 token=2
acquire owner=pg-a gw=2 token=3 req=1
acquire owner=pg-b gw=2 token=4 req=2
state
----
i1: granted pg-a at m1 under e1, token 1, renewed i1, since 2026-11-18T11:06:40Z
i2: released
i3: granted pg-b at m1 under e3, token 2, renewed i3, since 2026-11-18T11:06:40Z
i4: released
i5: refused: this request was granted before and its lease is over (the last epoch is e3): repeat it with a new request id
i6: refused: this request was granted before and its lease is over (the last epoch is e3): repeat it with a new request id
free; last s0 of e3; checkpoint none, none under way, 0 segments

# A forced takeover, and another one back: a late copy of the first takes nothing from the present owner.
acquire owner=pg-a gw=1 token=5 req=3 force
acquire owner=pg-b gw=2 token=6 req=4 force
write epoch=8 seq=1
acquire owner=pg-a gw=1 token=7 req=3 force
write epoch=8 seq=2
----
i7: granted pg-a at m1 under e7, token 5, renewed i7, since 2026-11-18T11:06:40Z
i8: granted pg-b at m2 under e8, token 6, renewed i8, since 2026-11-18T11:06:40Z
i9: applied
i10: refused: this request was granted before and its lease is over (the last epoch is e8): repeat it with a new request id
i11: applied

# Nor from its own successor: what continued is not set back.
continue owner=pg-b gw=1 token=6 new=8 req=5
acquire owner=pg-b gw=2 token=9 req=4 force
----
i12: granted pg-b at m1 under e12, token 8 (or token 6), renewed i12, since 2026-11-18T11:06:40Z
i13: refused: this request was granted before and its lease is over (the last epoch is e12): repeat it with a new request id

# Two continues of one token, each with its own request. The second is the present one. A copy of the first changes nothing.
# Its caller may still wait, and has shown a token that continues the lease: it gets the present grant, no refusal.
continue owner=pg-b gw=2 token=6 new=10 req=6
continue owner=pg-b gw=1 token=6 new=11 req=5
state
----
i14: granted pg-b at m2 under e14, token 10 (or token 6) (or token 8), renewed i14, since 2026-11-18T11:06:40Z
i15: granted pg-b at m2 under e14, token 10 (or token 6) (or token 8), renewed i14, since 2026-11-18T11:06:40Z
pg-b at m2 under e14, token 10 (or token 6) (or token 8), renewed i14, since 2026-11-18T11:06:40Z; last s0 of e14; checkpoint none, none under way, 0 segments

# A new request is a new request.
release epoch=14
acquire owner=pg-a gw=1 token=12 req=7
----
i16: released
i17: granted pg-a at m1 under e17, token 12, renewed i17, since 2026-11-18T11:06:40Z
