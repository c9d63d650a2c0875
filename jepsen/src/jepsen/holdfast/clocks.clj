(ns jepsen.holdfast.clocks
  "Wrong clocks, separate for each gateway: clock/clock.c replaces the clocks of its
  process, and a file per node has the error.

  A jump moves only the wall clock, by hours: nothing may depend on it. A drift
  moves all clocks of a gateway together, also CLOCK_BOOTTIME, which leases use; it
  stays within R3's limit of 10 % in either direction. Wrong readings are counted: a
  fault without any did not happen."
  (:require [clojure.string :as str]
            [jepsen.control :as c]
            [jepsen.holdfast.ssh :as ssh])
  (:import (java.util ArrayList Collections Random)))

(def rates
  "Millionths that gateways are too fast: as far apart as two may be, and less."
  [80000 -80000 30000 -30000 0])

(def jump-hours 12)

(defn- here [test f] (str (:clock test) "/" f))
(defn- tool [test f] (ssh/program test (here test f)))

(defn- file [test node] (str (:dir test) "/" node "/clock"))

(defn- turn!
  "On the node: {:ppm :ahead-ms :wall-ms :realtime :monotonic :boottime}, the last
  three how often its gateway read each clock."
  [test node & args]
  (let [out (c/su (c/exec (tool test "clock") (file test node) args))]
    (into {} (for [[_ k v] (re-seq #"\"(\w+)\":(-?\d+)" out)]
               [(keyword (str/replace k "_" "-")) (parse-long v)]))))

(defn install!
  "Before the gateway's first start, if this run has wrong clocks."
  [test node]
  (when (:clock test)
    (run! #(ssh/copy! test (here test %)) ["clock" "clock.so"])
    (turn! test node)))

(defn env
  "For the gateway's process."
  [test node]
  (when (and (:clock test) (not= "miss" (:lie test)))
    {:LD_PRELOAD     (tool test "clock.so")
     :HOLDFAST_CLOCK (file test node)}))

(defn- shuffled [^Random dice coll]
  (let [l (ArrayList. ^java.util.Collection coll)]
    (Collections/shuffle l dice)
    (vec l)))

(defn- on-all!
  "(f node) gives what to tell each node's clock."
  [test f]
  (c/on-nodes test (fn [t n] (apply turn! t n (f n)))))

(defn- begin!
  [dice state kind values]
  (fn [test]
    (let [of  (zipmap (shuffled dice (:nodes test)) values)
          was (on-all! test (fn [n] [kind (of n)]))]
      [(assoc-in state [:clocks kind] {:of of, :was was}) of])))

(defn- end!
  "Makes it right, and returns how often each wrong clock was read meanwhile."
  [kind clock]
  (fn [test state]
    (let [{:keys [of was]} (get-in state [:clocks kind])
          now   (on-all! test (constantly [kind 0]))
          read  (into {} (for [[n v] of :when (not (zero? v))]
                           [n (- (get-in now [n clock]) (get-in was [n clock]))]))]
      [(update state :clocks dissoc kind)
       {:read-wrong {clock read}
        :ahead-ms   (update-vals now :ahead-ms)
        :hit?       (every? pos? (vals read))}])))

(def faults
  {"clock-jump"
   {:doc   "the wall clock of every gateway set wrong by up to 12 hours, forward or back, set right at the end"
    :begin (fn [test ^Random dice state]
             (let [ms (fn [sign] (* sign (+ 60000 (.nextInt dice (* jump-hours 3600000)))))]
               ((begin! dice state "wall" (map ms (cycle [1 -1]))) test)))
    :end   (end! "wall" :realtime)}
   "clock-drift"
   {:doc   "all clocks of the gateways too fast or too slow, two of them 16 % apart"
    :begin (fn [test dice state]
             ((begin! dice state "rate" (cycle rates)) test))
    :end   (end! "rate" :boottime)}})
