(ns jepsen.holdfast.hosts
  "Faults of a PostgreSQL that moves between two hosts over three gateways. What
  runs is somebody else's (`cargo xtask jepsen` makes it): faults are asked for at
  a door, a Unix socket that takes one line and answers one.

      begin FAULT     ok WHAT           done, and what was hit
      end             ok WHAT           all is put right again, and stands by
      alive           ok g1=up g2=down  which gateways still run
      logs            ok g1=FILE ...    separated by tabs

  An answer that does not begin with `ok` is an error."
  (:require [clojure.java.io :as io]
            [clojure.string :as str]
            [clojure.tools.logging :refer [warn]]
            [jepsen [checker :as checker]
                    [nemesis :as nemesis]
                    [store :as store]]
            [jepsen.holdfast.nemesis :as faults])
  (:import (java.io BufferedReader)
           (java.net SocketAddress UnixDomainSocketAddress)
           (java.nio.channels Channels SocketChannel)
           (java.nio.charset StandardCharsets)))

(def faults
  {"kill-host"        "every process of the primary's host killed; the host boots at the end"
   "cut-host"         "the primary's host cut off from everything, while all on it goes on"
   "pause-host"       "SIGSTOP of every process of the primary's host"
   "switchover"       "the planned one, by `holdfast agent switchover`"
   "kill-gateway"     "SIGKILL of the serving gateway, later started again"
   "cut-gateway"      "the serving gateway cut off from everything"
   "pause-gateway"    "SIGSTOP of the serving gateway for longer than its lease"
   "restart-gateways" "SIGKILL of all gateways at once, started again at the end"})

(def mix
  "Each in turn, and a host together with the gateway that serves it."
  (conj (vec (sort (keys faults))) "kill-gateway+kill-host"))

(defn choices [nemesis]
  (if (= "mix" nemesis)
    mix
    (vec (remove #{"none"} (str/split nemesis #",")))))

(defn known?
  [nemesis]
  (every? #(contains? faults %) (mapcat #(str/split % #"\+") (choices nemesis))))

(def nodes "Gateways, as the door calls them." ["g1" "g2" "g3"])
(def hosts ["db1" "db2"])

(defn ask!
  "Asks at the door; what it said after `ok`."
  [^String door & words]
  (let [line   (str (str/join " " words) "\n")
        ^SocketAddress at (UnixDomainSocketAddress/of door)]
    (with-open [ch (SocketChannel/open at)]
      (let [out (Channels/newOutputStream ch)
            in  (BufferedReader. (Channels/newReader ch StandardCharsets/UTF_8))]
        (.write out (.getBytes line StandardCharsets/UTF_8))
        (.flush out)
        (let [answer (or (.readLine in) "closed without an answer")]
          (if-let [[_ said] (re-matches #"ok ?(.*)" answer)]
            said
            (throw (ex-info (str (str/trim line) ": " answer) {:door door}))))))))

(defn- alive [door]
  (into (sorted-map)
        (for [word (str/split (ask! door "alive") #" ")
              :let [[node state] (str/split word #"=")]]
          [node (= "up" state)])))

(defn- keep-logs!
  "Logs into the folder of the run, where the checkers look for them."
  [test]
  (doseq [word (str/split (ask! (:door test) "logs") #"\t")
          :let [[node file] (str/split word #"=" 2)
                from (io/file file)]
          :when (.exists from)]
    (io/copy from (store/path! test node (if (some #{node} hosts)
                                           "agent.log" "gateway.log")))))

(defrecord Nemesis []
  nemesis/Reflection
  (fs [_] #{:begin :end :alive})

  nemesis/Nemesis
  (setup! [this _] this)
  (invoke! [_ test op]
    (let [door (:door test)]
      (case (:f op)
        :begin (assoc op
                      :value (into {} (for [fault (str/split (:value op) #"\+")]
                                        [fault (ask! door "begin" fault)]))
                      ; Another host, another gateway: only all gateways are too many.
                      :served? (not (str/includes? (:value op) "restart-gateways")))
        :end   (assoc op :value (ask! door "end"), :served? true)
        :alive (if door
                 (do (keep-logs! test)
                     (assoc op :value (alive door)))
                 op))))
  (teardown! [_ test]
    (when-let [door (:door test)]
      (try (ask! door "end")
           (catch Exception e (warn e "the door does not put things right"))))))

(defn package [opts]
  (faults/package opts (choices (:nemesis opts)) (fn [_] (->Nemesis))))

(defn log-checker
  "No panic, no broken invariant in an agent's log."
  []
  (let [c (checker/log-file-pattern #"panicked at|R\d+:|assertion" "agent.log")]
    (reify checker/Checker
      (check [_ test history opts]
        (checker/check c (assoc test :nodes hosts) history opts)))))
