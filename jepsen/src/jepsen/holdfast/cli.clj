(ns jepsen.holdfast.cli
  "Command line: `test` runs one workload under one nemesis, `test-all` each
  under each, but for append: that needs a PostgreSQL."
  (:require [clojure.java.io :as io]
            [clojure.java.shell :refer [sh]]
            [clojure.string :as str]
            [clojure.tools.logging :refer [info warn]]
            [jepsen [checker :as checker]
                    [cli :as cli]
                    [generator :as gen]
                    [nemesis :as jepsen-nemesis]
                    [net :as net]
                    [os :as os]
                    [random :as random]
                    [tests :as tests]]
            [jepsen.holdfast [append :as append]
                             [checks :as checks]
                             [db :as db]
                             [flush-kill :as flush-kill]
                             [hosts :as hosts]
                             [lease :as lease]
                             [nemesis :as nemesis]
                             [netns :as netns]
                             [order :as order]
                             [register :as register]
                             [s3 :as s3]
                             [ssh :as ssh]
                             [summary :as summary]])
  (:gen-class))

(def workloads
  {"append"     append/workload
   "flush-kill" flush-kill/workload
   "lease"      lease/workload
   "order"      order/workload
   "register"   register/workload})

(def lies
  "Deliberate bugs, each for the checker that must find it."
  {"stale-read" "register, append: reads sometimes answer what was there long ago"
   "lost-write" "register, flush-kill, order: writes sometimes succeed unsent; append: transactions that append are sometimes rolled back"
   "lost-commit" "append: what is written to the ledger is sometimes rolled back"
   "early-ack"  "register, flush-kill: writes sometimes succeed before the gateway answered"
   "late-write" "order: an old write is sent again, late"
   "torn-snapshot" "order: what a snapshot shows of one volume is what an older one shows"
   "old-epoch"  "lease: the writes of who lost the set sometimes take effect"
   "old-grant"  "lease: a grant sometimes answers with the epoch of the one before"
   "outage"     "availability, with pause-all: what is stopped stays so, and the nemesis claims that a majority can talk"
   "lying-disk" "flush-kill, with unsynced-all: disks say that they synced, and mostly did not"
   "miss"       "coverage: clocks and answers of the store are right while the nemesis says that they are not; append: no packet is dropped or late either"
   "idle"       "coverage: next to nothing is asked"
   "leave-dead" "alive: what was killed is not started again"})

(def all-nemeses
  ["none" "partition-halves" "partition-primary" "partition-ring"
   "partition-bridge" "partition-one-way" "kill" "kill-primary" "restart-all"
   "pause" "pause-primary" "pause-all" "corrupt" "kill+partition-halves" "mix"])

(defn netns-os
  "Makes the namespaces, and the S3 server's if there is one, before the first
  node is set up; takes them away after the last."
  [opts store-node]
  (let [made  (atom nil)
        left  (atom 0)]
    (reify os/OS
      (setup! [this test _node]
        (locking this
          (swap! left inc)
          (when-not @made
            (netns/up! (cond-> (vec (:nodes test)) store-node (conj store-node)))
            (sh "rm" "-rf" (str (:dir test) "/store"))
            (.mkdirs (io/file (:dir test) "store"))
            (when store-node (reset! (:s3 test) (s3/start! test store-node)))
            (reset! made true))))
      (teardown! [this test _node]
        (locking this
          (when (zero? (swap! left dec))
            (when-let [s @(:s3 test)] (s3/stop! s))
            (when-not (:keep-data test)
              (sh "rm" "-rf" (str (:dir test) "/store")))
            (netns/down! (cond-> (vec (:nodes test))
                           store-node (conj store-node)))))))))

(defn- random-key []
  (str/join (repeatedly 64 #(format "%x" (rand-int 16)))))

(defn- seeded
  "A seed, drawn if none is given. What the generator draws is drawn by one
  thread, in order."
  [opts]
  (let [seed (or (:seed opts) (rand-int Integer/MAX_VALUE))]
    (alter-var-root #'random/rng
                    (constantly (random/thread-local-random seed)))
    (assoc opts :seed seed)))

(defn- assemble
  "The common part of every test, and `more`, with `checkers` besides the common
  ones. A package without generators makes no faults and undoes nothing."
  [opts workload package checkers more]
  (let [faults? (some? (:generator package))]
    (merge
      tests/noop-test
      (dissoc opts :store) ; Jepsen has another use for this key
      {:name        (str "holdfast " (:workload opts) " " (:nemesis opts)
                         (when (= "s3" (:store opts)) " s3")
                         (when-let [lie (:lie opts)] (str " lie-" lie)))
       :pure-generators true
       :client      (:client workload)
       :nemesis     (:nemesis package)
       :plot        {:nemeses (:perf package)}
       :generator
       (gen/phases
         (->> (:generator workload)
              (gen/stagger (/ (if (= "idle" (:lie opts)) 1 (:rate opts))))
              (gen/nemesis (:generator package))
              (gen/time-limit (:time-limit opts)))
         (gen/log "Ending what lasts, then a moment of calm")
         (:final-generator package)
         (gen/sleep 5)
         (:final-generator workload)
         (:alive-generator package))
       :checker
       (summary/spoken
         (checker/compose
           (cond->
             (merge
               {:run          (checks/run-facts opts)
                :workload     (:checker workload)
                :availability (checks/availability
                                {:progress (:progress workload)
                                 :within   (:available-within opts)})
                :coverage     (checks/coverage
                                {:needs      (if-let [n (:min-ok opts)]
                                               (zipmap (:progress workload)
                                                       (repeat n))
                                               (:needs workload))
                                 :faults?    faults?
                                 :once?      (every? nemesis/once (:faults package))
                                 :time-limit (:time-limit opts)
                                 :cycle-s    (+ (:interval opts) (:hold opts))})
                :stats        (checks/informative (checker/stats))
                :exceptions   (checker/unhandled-exceptions)}
               checkers)
             (:plots opts)
             (assoc :perf (checker/perf {:nemeses (:perf package)})))))}
      more)))

(defn- gateway-checkers [package]
  {:alive (checks/alive)
   :impostors (checks/impostors)
   :log   (checks/log (:faults package) "gateway.log")})

(defn- s3-options
  "The server that is not AWS stands in the store's URL."
  [url endpoint]
  (cond-> url
    endpoint (str (if (str/includes? url "?") "&" "?")
                  "endpoint=" endpoint "&region=us-east-1")))

(defn- gateways-test
  "Gateways that Jepsen itself starts, and their NBD doors."
  [opts]
  (let [netns?     (:netns opts)
        opts       (cond-> (nemesis/fitted opts) (not netns?) ssh/fitted)
        nodes      (if netns?
                     (mapv #(str "hf" (inc %)) (range (:gateways opts)))
                     (:nodes opts))
        store-node (when (and netns? (= "s3" (:store opts))) "hfs3")
        addresses  (when netns?
                     (netns/addresses (cond-> nodes store-node (conj store-node))))
        s3-url     (when store-node (str "http://" (addresses store-node) ":7070"))
        dir        (.getCanonicalPath (io/file (:dir opts)))
        opts       (assoc opts :dir dir, :nodes nodes)
        package    (nemesis/package opts)]
    (assemble
      opts ((workloads (:workload opts)) opts) package
      (gateway-checkers package)
      (merge
        (if netns?
          {:remote netns/remote
           :os     (netns-os opts store-node)}
          {:os     ssh/os})
        {:nodes       nodes
         :addresses   addresses
         :binary      (.getCanonicalPath (io/file (:binary opts)))
         :between     (some-> (:between opts) io/file .getCanonicalPath)
         :delays      (contains? (nemesis/single (:nemesis opts)) "delay")
         :clock       (some-> (:clock opts) io/file .getCanonicalPath)
         :disks       (some-> (:disks opts) io/file .getCanonicalPath)
         :mounted     (atom {})
         :s3          (atom nil)
         :nonserializable-keys [:s3 :mounted]
         :other-binary (some-> (:other-binary opts) io/file .getCanonicalPath)
         :cluster-key (random-key)
         :store-url   (case (:store opts)
                        "file" (str "file://" dir "/store")
                        "s3"   (s3-options "s3://holdfast/jepsen" s3-url)
                        (s3-options (ssh/store-of-its-own
                                      (:store opts)
                                      (str "run-" (System/currentTimeMillis)
                                           "-seed-" (:seed opts)))
                                    (:s3-endpoint opts)))
         :s3-endpoint   (or (:s3-endpoint opts) s3-url)
         :s3-access-key (or (System/getenv "AWS_ACCESS_KEY_ID") "jepsen")
         :s3-secret-key (or (System/getenv "AWS_SECRET_ACCESS_KEY") "jepsen-secret")
         :patience-ms (* 1000 (:patience opts))
         :net         net/iptables
         :db          (db/db)}))))

(defn- postgres-test
  "A PostgreSQL that runs already; with a door, faults can be asked for there."
  [{:keys [door postgres] :as opts}]
  (when-not postgres
    (throw (IllegalArgumentException.
             "append wants --postgres HOST:PORT (cargo xtask jepsen --workload append brings its own)")))
  (let [opts    (assoc opts :nodes hosts/nodes)
        package (if door (hosts/package opts) {:nemesis jepsen-nemesis/noop})]
    (assemble
      opts (append/workload opts) package
      (when door (assoc (gateway-checkers package) :agent-log (hosts/log-checker)))
      {:ssh {:dummy? true}})))

(defn holdfast-test
  [{:keys [workload nemesis door] :as opts}]
  (let [append? (= "append" workload)]
    (when-not (cond (not append?) (nemesis/known? nemesis)
                    door          (hosts/known? nemesis)
                    :else         (= "none" nemesis))
      (throw (IllegalArgumentException.
               (str "--nemesis: found " nemesis ", expected none"
                    (when (or door (not append?))
                      (str ", mix, mix-2, or of "
                           (str/join ", " (sort (keys (if append? hosts/faults
                                                         nemesis/faults))))))
                    " with --workload " workload
                    (when (and append? (not door)) " and no --door")))))
    ((if append? postgres-test gateways-test) (seeded opts))))

(def opt-spec
  [["-w" "--workload NAME" (str "One of " (str/join ", " (sort (keys workloads))))
    :default "register"
    :validate [workloads "There is no such workload"]]
   [nil "--nemesis FAULTS"
    (str "Faults, joined by + for several at once and by , for one after the other: none, mix, mix-2, members, "
         (str/join ", " (sort (keys nemesis/faults)))
         "; with append: " (str/join ", " (sort (keys hosts/faults))))
    :default "none"
    :validate [#(or (nemesis/known? %) (hosts/known? %)) "There is no such fault"]]
   [nil "--seed N" "Decides requests, faults and the nodes that they hit, though not when; drawn and reported if not given"
    :parse-fn parse-long, :validate [nat-int? "0 or more"]]
   [nil "--binary PATH" "The holdfast program on this machine; copied to nodes that are reached over SSH"
    :default "../target/release/holdfast"]
   [nil "--other-binary PATH" "upgrade: the program that gateways are started with in turn, now this one, now --binary; without it they are only restarted"]
   [nil "--netns" "Nodes are network namespaces of this machine (root); --nodes is ignored"
    :default false]
   [nil "--gateways N" "With --netns: how many"
    :default 3, :parse-fn parse-long, :validate [#(<= 1 % 9) "1 to 9"]]
   [nil "--dir DIR" "Directory for the nodes' files, on the nodes; those of a run are removed before it and after it"
    :default "/tmp/holdfast-jepsen"]
   [nil "--store STORE" "file (--netns only), s3 (--netns only: starts versitygw on a node of its own), or a URL that all gateways reach; each run has a folder of its own below it, which it leaves"
    :default "file"]
   [nil "--s3-endpoint URL" "Base URL of the S3 server, where the store's URL is an s3:// one and it is not AWS"]
   [nil "--interval SECONDS" "Calm between two faults"
    :default 7, :parse-fn parse-long, :validate [pos? "Positive"]]
   [nil "--hold SECONDS" "How long a fault lasts"
    :default 6, :parse-fn parse-long, :validate [pos? "Positive"]]
   [nil "--rate HZ" "Operations per second at most, all clients together"
    :default 150, :parse-fn parse-double, :validate [pos? "Positive"]]
   [nil "--op-timeout SECONDS" "How long every other client waits for an answer; longer than --hold, or late answers are not seen"
    :default 9, :parse-fn parse-long, :validate [pos? "Positive"]]
   [nil "--impatient SECONDS" "The same for every other client"
    :default 1.5, :parse-fn parse-double, :validate [pos? "Positive"]]
   [nil "--patience SECONDS" "How long a client looks for a gateway that serves before its operation fails"
    :default 3, :parse-fn parse-long, :validate [pos? "Positive"]]
   [nil "--available-within SECONDS" "A longer silence while a majority can talk makes the run invalid"
    :default checks/allowed-s, :parse-fn parse-double, :validate [pos? "Positive"]]
   [nil "--min-ok N" "Successful writes that a run needs to mean anything; by default the workload says how many of what"
    :parse-fn parse-long]
   [nil "--ops-per-key N" "register: length of a key's history"
    :default 120, :parse-fn parse-long]
   [nil "--threads-per-key N" "register: clients of one key at a time"
    :default 4, :parse-fn parse-long]
   [nil "--postgres HOST:PORT" "append: where PostgreSQL is reached, as user postgres without a password; its tables jepsen_* are made anew"]
   [nil "--door PATH" "append: Unix socket where faults are asked for (see hosts.clj); without one there are none"]
   [nil "--between PATH" "A build of between/: needed by delay, and by s3-503 (with --netns)"]
   [nil "--clock DIR" "With clock.so and clock, built of clock/clock.c: needed by clock-jump and clock-drift"]
   [nil "--disks PATH" "The program of scenarios (target/debug/holdfast-scenarios), which mounts the nodes' disks: needed by unsynced (with --netns)"]
   [nil "--porcupine PATH" "A build of porcupine/ as a second judge"]
   [nil "--lie LIE" (str "A deliberate bug, to see its checker find it: " (str/join "; " (map (fn [[k v]] (str k " (" v ")")) (sort lies))))
    :validate [lies "There is no such lie"]]
   [nil "--[no-]plots" "Latency and rate plots (gnuplot)"
    :default true]
   [nil "--keep-data" "Leave the gateways' directories and the store"
    :default false]])

(defn all-tests
  [opts]
  (for [w (if-let [w (:workload opts)]
              [w]
              (sort (keys (dissoc workloads "append"))))
        n (if-let [n (:nemesis opts)] [n] all-nemeses)
        _ (range (:test-count opts))]
    (holdfast-test (assoc opts :workload w, :nemesis n))))

(defn -main
  [& args]
  (cli/run!
    (merge (cli/single-test-cmd {:test-fn  holdfast-test
                                 :opt-spec opt-spec})
           (cli/test-all-cmd
             {:tests-fn all-tests
              :opt-spec (cli/without-defaults-for [:workload :nemesis] opt-spec)})
           {"summary" {:opt-spec [cli/help-opt]
                       :usage    "summary [DIR...]: a table of results, by default of store/"
                       :run      (fn [{:keys [arguments]}]
                                   (summary/print-summary (or (seq arguments)
                                                              ["store"])))}}
           (cli/serve-cmd))
    args))
