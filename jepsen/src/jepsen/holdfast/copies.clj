(ns jepsen.holdfast.copies
  "A gateway that comes back with an old copy of its disk, and one that runs twice.
  Either has forgotten an acknowledged entry, or will: the others must refuse or
  repair it (R9), and no rule may break. So it may exit by itself. Once per run, and
  always the same gateway: two of three that forget are outside of the promise."
  (:require [clojure.string :as str]
            [jepsen [control :as c]
                    [db :as jdb]
                    [util :as util]]
            [jepsen.control.util :as cu]
            [jepsen.holdfast.db :as db])
  (:import (java.util Random)))

(defn- here [test node f]
  (get (c/on-nodes test [node] f) node))

(defn- victim
  "The one that is spoilt already, or drawn."
  [test ^Random dice {:keys [spoilt]}]
  (or (first spoilt)
      (nth (vec (:nodes test)) (.nextInt dice (count (:nodes test))))))

(defn- said
  "The last lines of a log that are more than information."
  [log]
  (->> (c/exec :bash :-c "tail -n 60 \"$1\" | grep -aE ' WARN | ERROR |^error|CLUSTER-C3|heal' | tail -n 3 | cut -c1-400; true"
               :said log)
       str/split-lines
       (remove str/blank?)
       vec))

(def ^:private settle-ms
  "From a start until a gateway that must be refused has been: a few heartbeats
  and a call to the cluster's own group."
  4000)

(defn- keep-copy!
  [test dice state]
  (if (:copied state)
    [state {:done-already (:copied state), :hit? false}]
    (let [n (victim test dice state)]
      (here test n
            (fn [t n]
              (jdb/kill! (:db t) t n)
              (c/su (c/exec :cp :-a (db/data t n) (str (db/data t n) ".old")))
              (jdb/start! (:db t) t n)))
      [(assoc state :copied n, :restore n) {:copied n}])))

(defn- put-back!
  [test state]
  (if-let [n (:restore state)]
    (let [what (here test n
                     (fn [t n]
                       (jdb/kill! (:db t) t n)
                       (c/su (c/exec :rm :-rf (db/data t n))
                             (c/exec :mv (str (db/data t n) ".old") (db/data t n)))
                       (jdb/start! (:db t) t n)
                       (Thread/sleep settle-ms)
                       {:restored n
                        :runs?    (boolean (db/pid t n))
                        :said     (said (db/log-file t n))}))
          ; Refused: the process ended, or it logged that it is healing.
          what (assoc what :refused? (or (not (:runs? what))
                                         (boolean (some #(str/includes? % "heal")
                                                        (:said what)))))]
      [(-> state (dissoc :restore) (update :spoilt conj n))
       (assoc what :listed (get (db/gateways test) n))])
    [state {}]))

(defn- twin-config
  "The gateway's own settings with another directory and other ports."
  [test node]
  (-> (c/su (c/exec :cat (str (db/dir test node) "/gateway.toml")))
      (str/replace (db/data test node) (str (db/data test node) ".twin"))
      (str/replace (str ":" db/api-port "\"") ":7410\"")
      (str/replace (str ":" db/peer-port "\"") ":7411\"")
      (str/replace (str ":" db/nbd-port "\"") ":10819\"")))

(defn- twin-file [test node f] (str (db/dir test node) "/twin." f))

(defn- twin-pid [test node]
  (db/live-pid (twin-file test node "pid")))

(defn- start-twin!
  [test dice state]
  (if (:twin state)
    [state {:done-already (:twin state), :hit? false}]
    (let [n                      (victim test dice state)
          {:keys [leads member]} (get (db/gateways test) n)]
      (here test n
            (fn [t n]
              (jdb/pause! (:db t) t n) ; a copy of one moment, as of a machine that is cloned
              (c/su (c/exec :cp :-a (db/data t n) (str (db/data t n) ".twin")))
              (jdb/resume! (:db t) t n)
              (c/su (cu/write-file! (twin-config t n) (twin-file t n "toml"))
                    (cu/start-daemon! {:chdir   (db/dir t n)
                                       :logfile (twin-file t n "log")
                                       :pidfile (twin-file t n "pid")
                                       :env     (db/env t n)}
                                      (db/bin t n) :gateway :run
                                      :--config (twin-file t n "toml")))))
      [(-> state (assoc :twin n, :twin-runs n, :twin-member member) (update :spoilt conj n))
       {:twin-of n, :leads leads}])))

(defn- refused-by
  "{node lines} of the other gateways' logs with which they refused a life of this
  member. A refused process may keep running: its answers do not count."
  [test node member]
  (let [others (remove #{node} (:nodes test))]
    (c/on-nodes test others
                (fn [t n]
                  (parse-long (c/exec :bash :-c "grep -ac \"$1\" \"$2\"; true" :refused
                                      (str "m" member " is not who it says")
                                      (db/log-file t n)))))))

(defn- stop-twin!
  [test {:keys [twin-member] :as state}]
  (if-let [n (:twin-runs state)]
    [(dissoc state :twin-runs)
     (here test n
           (fn [t n]
             (let [log  (twin-file t n "log")
                   pid  (twin-pid t n)
                   what {:twin-of       n
                         :twin-ran?     (boolean pid)
                         :twin-said     (said log)
                         :twin-log-lines (parse-long (first (str/split (c/exec :wc :-l log) #" ")))
                         :original-ran? (boolean (db/pid t n))
                         :original-said (said (db/log-file t n))}
                   by   (refused-by test n twin-member)
                   what (assoc what
                               :refused-by by
                               :refused? (or (not (:twin-ran? what))
                                             (not (:original-ran? what))
                                             (boolean (some pos? (vals by)))))]
               (when pid (util/meh (c/su (c/exec :kill :-9 pid))))
               (c/su (c/exec :rm :-rf (str (db/data t n) ".twin") (twin-file t n "pid")))
               ; It did start: a program that fails at once is no twin.
               (assoc what :hit? (< 1 (:twin-log-lines what))))))]
    [state {}]))

(def faults
  {"restored" {:doc "one gateway comes back with a copy of its disk that is as old as the fault; once, and always the same gateway"
               :begin keep-copy!, :end put-back!}
   "twice"    {:doc "a second process of one gateway from a copy of its disk, with other ports; once, and always the same gateway"
               :begin start-twin!, :end stop-twin!}})
