# The clock is suspected: the read lease is void until a quorum has answered something that was sent after the suspicion.
gateway gw=1
leader gw=1 term=1
acquire owner=pg-a gw=1 token=1 req=1
look gw=1 boot=1000 mono=500
now ms=10
look gw=1 boot=1010 mono=510
acked gw=1 sent=5
read gw=1
----
t1-i1: first entry of the term
i2: granted pg-a at m1 under e2, token 1, renewed i2, since 2026-11-18T11:06:40Z
trusted
trusted
yes, under e2

# The machine slept for 61 ms: boot time went on, monotonic time did not.
now ms=20
look gw=1 boot=1081 mono=520
read gw=1
take-write gw=1
acked gw=1 sent=15
read gw=1
acked gw=1 sent=20
read gw=1
acked gw=1 sent=21
read gw=1
----
suspected: the clocks moved apart by 61ms, expected at most 60ms: the machine was suspended, or a clock jumped
no, wait: no quorum of gateways has answered recently enough
yes, under e2
no, wait: no quorum of gateways has answered recently enough
no, wait: no quorum of gateways has answered recently enough
yes, under e2

# From there on the clocks are compared anew. Small steps add up.
look gw=1 boot=1091 mono=530
look gw=1 boot=1131 mono=540
look gw=1 boot=1171 mono=550
look gw=1 boot=1182 mono=560
----
trusted
trusted
trusted
suspected: the clocks moved apart by 61ms, expected at most 60ms: the machine was suspended, or a clock jumped

# A long wait for the processor, which both clocks saw; and a clock that goes back.
look gw=1 boot=1246 mono=625
look gw=1 boot=1322 mono=701
look gw=1 boot=1321 mono=702
look gw=1 boot=1331 mono=712
----
trusted
suspected: the process did not run for 76ms, expected at most 75ms
suspected: a clock went backwards by 1ms
trusted

# A suspicion that lasts leads to a cut-off.
now ms=320
cut-off gw=1
now ms=321
cut-off gw=1
read gw=1
----
no
yes
no, close: no quorum of gateways has answered for 301ms, expected at most 300ms
