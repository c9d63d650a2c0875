# Gateway 1 has the seat; the etcd keeps it for 10 s from the arrival of each keep-alive, and three quarters of that are served from its sending.
seat-won gw=1 revision=40 sent=1000
now ms=3050
seat-kept gw=1 sent=3000
now ms=5100
seat-kept gw=1 sent=5000
----
answers until 8500 ms
answers until 10500 ms
answers until 12500 ms

# The etcd answers no more. Until the limit everything goes on; after that nothing does, for ever: an answer that comes late was to a keep-alive of before.
now ms=12499
seat-asks gw=1
now ms=12500
seat-asks gw=1
seat-kept gw=1 sent=7000
seat-kept gw=1 sent=12400
seat-asks gw=1
----
answers until 12500 ms
no answer: the etcd has not confirmed the pair's seat in time: the other gateway may hold it
no answer: the etcd has not confirmed the pair's seat in time: the other gateway may hold it
no answer: the etcd has not confirmed the pair's seat in time: the other gateway may hold it
no answer: the etcd has not confirmed the pair's seat in time: the other gateway may hold it

# The lease has ended at the etcd by 15.1 s at the latest. Gateway 2 takes over what gateway 1 left, and nothing that is another's.
now ms=15200
seat-won gw=2 revision=52 sent=15150
seat-head gw=2 revision=40
seat-head gw=2 revision=52
seat-head gw=2 revision=40 etcd=8
seat-asks gw=1
----
answers until 22650 ms
Earlier { revision: 40 }
Ours
Foreign
no answer: the etcd has not confirmed the pair's seat in time: the other gateway may hold it

# Gateway 1 was stopped between winning and reading the store, in another world: it finds what a later one left, and gives up.
seat-head gw=1 revision=52
----
Later { revision: 52 }

# A person deletes the key: gateway 2 hears of it with its next keep-alive.
now ms=17000
seat-asks gw=2
seat-lost gw=2
seat-kept gw=2 sent=17000
----
answers until 22650 ms
no answer: the etcd says that the pair's seat is not this gateway's any more: its key is gone
no answer: the etcd says that the pair's seat is not this gateway's any more: its key is gone
