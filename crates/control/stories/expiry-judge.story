# What a leader did not see as a leader it cannot hold against the owner: a new one waits the whole time to live.
gateway gw=1
gateway gw=2
leader gw=1 term=1
acquire owner=pg-a gw=1 token=1 req=1 ttl=3000
now ms=2900
leader gw=2 term=2
now ms=5899
judge gw=2
judge gw=1
now ms=5900
judge gw=2
judge gw=1
----
t1-i1: first entry of the term
i2: granted pg-a at m1 under e2, token 1, renewed i2, since 2026-11-18T11:06:40Z
t2-i3: first entry of the term
not expired
not expired
expired: judged=2/2
not expired

# It stood still for an hour, but for 20 ms: renewals of that hour could not reach it, so they do not count.
renew epoch=2
look gw=2 boot=5900 mono=5900
now ms=3606900
look gw=2 boot=3606900 mono=5920
judge gw=2
now ms=3609879
judge gw=2
now ms=3609880
judge gw=2
look gw=2 boot=3609880 mono=8900
----
i4: renewed
trusted
suspected: the clocks moved apart by 3600.98s, expected at most 60ms: the machine was suspended, or a clock jumped
not expired
not expired
expired: judged=2/4
suspected: the process did not run for 2.98s, expected at most 75ms

# Small gaps are added, and no more, so that on a busy machine a dead owner's lease expires too.
renew epoch=2
now ms=3609980
look gw=2 boot=3609980 mono=9000
now ms=3610080
look gw=2 boot=3610080 mono=9100
now ms=3610180
look gw=2 boot=3610180 mono=9200
now ms=3613179
judge gw=2
now ms=3613180
judge gw=2
----
i5: renewed
suspected: the process did not run for 100ms, expected at most 75ms
suspected: the process did not run for 100ms, expected at most 75ms
suspected: the process did not run for 100ms, expected at most 75ms
not expired
expired: judged=2/5

# A free set has nothing to judge.
release epoch=2
judge gw=2
----
i6: released
not expired
