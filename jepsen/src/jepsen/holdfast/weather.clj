(ns jepsen.holdfast.weather
  "A bad network that still is one: packets are lost, or late."
  (:require [clojure.string :as str]
            [jepsen [control :as c]
                    [util :as util]]
            [jepsen.control.util :as cu]
            [jepsen.holdfast [between :as between]
                             [ssh :as ssh]]))

(def peer-port "Settings for other gateways, if a relay is in front of this one." 7402)
(def control-port 7403)

(def loss "Of the packets that come in at a gateway, from gateways and clients." 0.2)

(def late "One way, each piece; the answer is late as well." "delay=30ms&jitter=40ms")

(def ^:private rule
  ; Except SSH, by which the test reaches the node.
  ["INPUT" "-i" "eth0" "-p" "tcp" "!" "--dport" "22"
   "-m" "statistic" "--mode" "random" "--probability" (str loss) "-j" "DROP"])

(defn- lose!
  [test _ state]
  (c/on-nodes test (fn [_ _] (c/su (c/exec :iptables :-w :-I rule))))
  [(update state :unsure conj "loss") {:probability loss}])

(defn- dropped!
  "Takes the rule away: how many packets it dropped."
  [_ _]
  (c/su
    (let [line (->> (c/exec :iptables :-w :-n :-v :-x :-L :INPUT)
                    str/split-lines
                    (filter #(str/includes? % "statistic"))
                    first)]
      (util/meh (c/exec :iptables :-w :-D rule))
      (if line (parse-long (first (str/split (str/trim line) #"\s+"))) 0))))

(defn- lose-no-more!
  [test state]
  (let [dropped (c/on-nodes test dropped!)]
    [(update state :unsure disj "loss")
     {:dropped dropped, :hit? (every? pos? (vals dropped))}]))

(defn install!
  "A relay in front of this gateway's peer port `to`, which forwards at once until
  told otherwise; if this run has delays."
  [test node dir address to]
  (when (:delays test)
    (ssh/copy! test (:between test))
    (c/su (cu/start-daemon! {:chdir   dir
                             :logfile (str dir "/between.log")
                             :pidfile (str dir "/between.pid")}
                            (ssh/program test (:between test))
                            :-listen (str ":" peer-port)
                            :-to (str "127.0.0.1:" to)
                            :-control (str ":" control-port)))
    (util/await-fn #(between/turn! address control-port "")
                   {:retry-interval 100, :timeout 20000, :log-interval 5000})))

(defn remove! [test dir]
  (when (:delays test)
    (cu/stop-daemon! (str dir "/between.pid"))))

(defn- turn-all! [test query]
  (update-vals (into {} (for [n (:nodes test)] [n (get (:addresses test) n n)]))
               #(between/turn! % control-port query)))

(defn- delay!
  [test _ state]
  [(assoc state :delayed-before (turn-all! test late)) {:each late}])

(defn- delay-no-more!
  [test state]
  (let [now     (turn-all! test "delay=0s&jitter=0s")
        delayed (into {} (for [[n t] now]
                           [n (- (:delayed t)
                                 (get-in state [:delayed-before n :delayed]))]))]
    [(dissoc state :delayed-before)
     {:delayed delayed, :hit? (every? pos? (vals delayed))}]))

(def faults
  {"loss"  {:doc "every fifth packet that comes in at a gateway is lost, from gateways and clients"
            :begin lose!, :end lose-no-more!}
   "delay" {:doc "what gateways say to one another comes 30 to 70 ms late, each way"
            :begin delay!, :end delay-no-more!}})
