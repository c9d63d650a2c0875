(ns jepsen.holdfast.hosts
  "Faults of a PostgreSQL that moves between two hosts over three gateways. `cargo
  xtask jepsen` runs these. Faults are requested at a door, a Unix socket that takes
  one line and answers with one.

      begin FAULT     ok SERVED HIT WHAT         done, with its target
      miss FAULT      the same                   not done, and treated as if it were
      end             ok SERVED HIT WHAT         everything is undone and standing by
      alive           ok g1=up g2=down spoilt=g2  which gateways still run, and whose
                                                 journal was damaged
      logs            ok g1=FILE ...             separated by tabs

  SERVED is `served` if transactions must succeed from now on, otherwise `unserved`;
  HIT is `hit`, or `missed` if nothing happened, at the beginning or found at the
  end. An answer that does not begin with `ok` is an error."
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
  {"kill-host"         "every process of the primary's host killed; the host boots at the end"
   "cut-host"          "the primary's host cut off from everything, while all on it goes on"
   "pause-host"        "SIGSTOP of every process of the primary's host"
   "switchover"        "the planned one, by `holdfast agent switchover`"
   "kill-gateway"      "SIGKILL of the serving gateway, later started again"
   "cut-gateway"       "the serving gateway cut off from everything"
   "pause-gateway"     "SIGSTOP of the serving gateway for longer than its lease"
   "restart-gateways"  "SIGKILL of all gateways at once, started again at the end"
   "pause-all"         "SIGSTOP of all gateways for longer than their leases"
   "partition-primary" "the serving gateway alone, the others together; hosts and store reach all"
   "partition-halves"  "the serving gateway together with one other, the third alone"
   "partition-ring"    "each gateway hears one other, no two the same one"
   "partition-bridge"  "one link between gateways cut, the third gateway hears both ends"
   "partition-one-way" "the serving gateway hears no other, or no other hears it"
   "loss"              "every fifth packet that comes in at a gateway is lost, whoever sent it"
   "delay"             "what gateways say to one another comes 30 to 70 ms late, each way"
   "unsynced"          "power cut of one gateway: what it did not sync is lost, torn or kept"
   "unsynced-all"      "the same of all gateways at once"
   "s3-down"           "SIGKILL of the S3 server, started again at the end"
   "s3-slow"           "SIGSTOP of the S3 server: requests hang"
   "s3-503"            "every request to the store is answered with 503 SlowDown"
   "clock-jump"        "the wall clock of every gateway set wrong by up to 12 hours, forward or back"
   "clock-drift"       "all clocks of the gateways too fast or too slow, two of them 16 % apart"
   "corrupt"           "one gateway killed and a bit of its journal flipped, started at the end; once"
   "truncate"          "the same with a file of its journal cut off in the middle"
   "upgrade"           "each gateway in turn ended by SIGTERM and started again"
   "drain"             "a gateway stands aside, often the serving one, and comes back at the end"
   "replace"           "a gateway killed and its disk emptied; at the end it takes the place of its former self"
   "restored"          "the disk of a gateway copied, and put back at the end; once"
   "twice"             "a second process of a gateway on a copy of its disk, with other ports; once"})

(def sets
  "Names for several faults in turn. `mix` stands on what every run stands on;
  `mix-2` on disks, clocks and a store of its own."
  {"mix" ["cut-gateway" "cut-host" "kill-gateway" "kill-host" "pause-gateway"
          "pause-host" "restart-gateways" "switchover" "kill-gateway+kill-host"]
   "mix-2" ["partition-primary" "partition-halves" "partition-ring"
            "partition-bridge" "partition-one-way" "loss" "delay" "unsynced"
            "unsynced-all" "s3-down" "s3-slow" "s3-503" "clock-jump" "clock-drift"
            "partition-primary+kill-host" "clock-drift+kill-gateway"
            "s3-slow+kill-gateway" "delay+unsynced"]})

(defn choices [nemesis]
  (->> (str/split nemesis #",")
       (mapcat #(get sets % [%]))
       (remove #{"none"})
       vec))

(defn known?
  [nemesis]
  (every? #(contains? faults %) (mapcat #(str/split % #"\+") (choices nemesis))))

(def nodes "Gateways, as the door calls them." ["g1" "g2" "g3"])
(def hosts ["db1" "db2"])

(defn ask!
  "Sends a command to the socket at `door`; gives the text after `ok`."
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

(defn- change!
  "Requests a fault, or its end: {:served? :hit? :what}."
  [door & words]
  (let [said (apply ask! door words)
        [_ served hit what] (re-matches #"(served|unserved) (hit|missed) ?(.*)" said)]
    (when-not served
      (throw (ex-info (str (str/join " " words) ": found " said
                           ", expected served or unserved, hit or missed")
                      {:door door})))
    {:served? (= "served" served), :hit? (= "hit" hit), :what what}))

(defn- begin!
  "Begins faults that start together, one after the other; a lying nemesis begins
  none. Each fault only adds to those before, so a majority was served throughout if
  every answer says so."
  [{:keys [door lie]} fault]
  (let [done (mapv (fn [f]
                     [f (change! door (if (= "miss" lie) "miss" "begin") f)])
                   (str/split fault #"\+"))]
    {:value   (into {} (for [[f {:keys [what]}] done] [f what]))
     :hit?    (every? (comp :hit? second) done)
     ; The last fault's answer tells whether the service ran under all of them.
     :served? (:served? (second (peek done)))
     :unbroken? (every? (comp :served? second) done)}))

(defn- alive
  "{:value {node runs?}, :spoilt #{node}}"
  [door]
  (reduce (fn [found word]
            (let [[node state] (str/split word #"=")]
              (if (= "spoilt" node)
                (update found :spoilt conj state)
                (update found :value assoc node (= "up" state)))))
          {:value (sorted-map), :spoilt #{}}
          (str/split (ask! door "alive") #" ")))

(defn- keep-logs!
  "Logs into the folder of the run, where the checkers look for them."
  [test]
  (doseq [word (str/split (ask! (:door test) "logs") #"\t")
          :let [[node file] (str/split word #"=" 2)
                from (io/file file)]
          :when (.exists from)]
    (io/copy from (store/path! test node (if (some #{node} hosts)
                                           "agent.log" "gateway.log")))))

(defn told
  "Result of ending the faults. For a gateway with an old disk, or one that ran
  twice, the input of the check of impostors (checks.clj): {fault {:refused? ...}}."
  [what]
  (let [found (re-seq #"(restored|twice) (g\d): (refused|not refused)" what)]
    (if (seq found)
      (into {:what what}
            (for [[_ fault node outcome] found]
              [fault {:node node, :refused? (= "refused" outcome)}]))
      what)))

(defrecord Nemesis []
  nemesis/Reflection
  (fs [_] #{:begin :end :alive})

  nemesis/Nemesis
  (setup! [this _] this)
  (invoke! [_ test op]
    (let [door (:door test)]
      (case (:f op)
        :begin (merge op (begin! test (:value op)))
        ; An end only removes faults, so :unbroken? is :served?.
        :end   (let [{:keys [what served? hit?]} (change! door "end")]
                 (assoc op :value (told what), :served? served?, :hit? hit?, :unbroken? served?))
        :alive (if door
                 (do (keep-logs! test)
                     (merge op (alive door)))
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
