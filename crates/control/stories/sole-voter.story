# A sole voter always has its read lease: nobody else can be elected. A second voter ends that before it is proposed.
gateway gw=1
leader gw=1 term=1
acquire owner=pg-a gw=1 token=1 req=1
read gw=1
tell gw=1 event=sole
now ms=3600000
read gw=1
cut-off gw=1
tell gw=1 event=not-sole
read gw=1
now ms=3600300
cut-off gw=1
now ms=3600301
cut-off gw=1
----
t1-i1: first entry of the term
i2: granted pg-a at m1 under e2, token 1, renewed i2, since 2026-11-18T11:06:40Z
no, wait: no quorum of gateways has answered recently enough
yes, under e2
no
no, wait: no quorum of gateways has answered recently enough
no
yes

# Also a sole voter serves only what it leads, and what was granted here.
tell gw=1 event=sole
tell gw=1 event=lost
read gw=1
cut-off gw=1
----
no, close: this gateway does not lead the set
no
