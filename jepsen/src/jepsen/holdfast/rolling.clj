(ns jepsen.holdfast.rolling
  "What a person does to a healthy cluster, through the command line: move the
  set, restart every gateway in turn. Nothing of it may be noticed but as a
  moment in which another gateway begins to serve."
  (:require [jepsen.control :as c]
            [jepsen.holdfast.db :as db])
  (:import (java.util ArrayList Collections Random)))

(defn- draw [^Random dice coll] (nth (vec coll) (.nextInt dice (count coll))))

(defn- shuffled [^Random dice coll]
  (let [l (ArrayList. ^java.util.Collection coll)]
    (Collections/shuffle l dice)
    (vec l)))

(defn- here
  "Runs f on the node, for its value."
  [test node f]
  (get (c/on-nodes test [node] f) node))

(defn running
  "Nodes that no fault of ours has taken away."
  [test {:keys [down stopped spoilt]}]
  (remove (into #{} cat [down stopped spoilt]) (:nodes test)))

(defn- switchover!
  "To a gateway that does not serve; there may be no serving one just now."
  [test dice state]
  (let [from  (first (db/serving-nodes test))
        to    (draw dice (or (seq (remove #{from} (running test state)))
                             (:nodes test)))
        res   (db/cli test "switchover" db/set-name "--to"
                      (db/gateway-name test to))
        after (first (db/serving-nodes test))]
    [state {:from from, :to to, :exit (:exit res), :said (db/message res)
            :serves after, :hit? (and (zero? (:exit res)) (= to after))}]))

(defn- restart-one!
  [test node which]
  (here test node
        (fn [t n]
          (let [ms (db/term! t n)]
            (when which (db/use-program! t n which))
            (db/start! t n)
            {:ended-ms ms}))))

(defn- upgrade!
  "Ends each gateway by SIGTERM and starts it again, the next one once the cluster
  reports this one as ready. With another program, all change to it, and back the
  next time."
  [test dice state]
  (let [which (when (:other-binary test)
                (if (= :other-binary (:program state)) :binary :other-binary))
        nodes (shuffled dice (running test state))
        done  (reduce (fn [done n]
                        (let [res    (restart-one! test n which)
                              ready? (db/await-ready test n 20)
                              done   (assoc done n (assoc res :ready? ready?))]
                          ; While one gateway is not ready, no second one may be restarted.
                          (if ready? done (reduced done))))
                      {} nodes)]
    [(assoc state :program which)
     {:order   nodes
      :program which
      :done    done
      :hit?    (and (= (count done) (count nodes))
                    (every? (comp number? :ended-ms) (vals done)))}]))

(defn- drain!
  "Every other time the one that serves."
  [test ^Random dice state]
  (let [serves (first (db/serving-nodes test))
        node   (if (and serves (.nextBoolean dice))
                 serves
                 (draw dice (or (seq (running test state)) (:nodes test))))
        res    (db/cli-within test "20s" "gateway" "drain"
                              (db/gateway-name test node))
        after  (first (db/serving-nodes test))]
    [(assoc state :drained node)
     {:drained node, :served serves, :serves after
      :exit (:exit res), :said (db/message res)
      :hit? (and (zero? (:exit res)) (not= node after))}]))

(defn- undrain!
  [test {:keys [drained] :as state}]
  (let [res (db/cli test "gateway" "undrain" (db/gateway-name test drained))]
    [(dissoc state :drained)
     {:undrained drained, :exit (:exit res), :said (db/message res)}]))

(defn- replace!
  "A gateway loses its disk, comes back with an empty one and takes the place of
  its own former self. One that does not get that far stays away."
  [test dice state]
  (let [node   (draw dice (or (seq (running test state)) (:nodes test)))
        member (:member (get (db/gateways test) node))]
    (cond
      ; With another gateway away, wiping this one's disk would lose a majority.
      (not= (set (:nodes test)) (set (running test state)))
      [state {:said "not all gateways run", :hit? false}]

      (not member)
      [state {:node node, :said "nobody says which member it is", :hit? false}]

      :else
      (let [_      (here test node
                         (fn [t n]
                           (db/kill! t n)
                           (db/wipe! t n)
                           (db/start! t n)))
            ; The new gateway must answer before it is let in; until then the command tries again.
            res    (db/cli-within test "40s" "gateway" "replace"
                                  (str "m" member) "--by" (db/api test node) "--yes")
            ready? (and (zero? (:exit res)) (db/await-ready test node 20))
            now    (:member (get (db/gateways test) node))
            ok?    (boolean (and ready? now (not= member now)))]
        [(cond-> state (not ok?) (update :spoilt conj node))
         {:node node, :member member, :now now, :exit (:exit res)
          :said (db/message res), :ready? ready?, :hit? ok?}]))))

(def faults
  {"switchover" {:doc   "the set moved to another gateway by the command line"
                 :begin switchover!}
   "upgrade"    {:doc   "every gateway in turn ended by SIGTERM and started again, with --other-binary if there is one"
                 :begin upgrade!}
   "drain"      {:doc   "a gateway stands aside, often the serving one, and comes back at the end"
                 :begin drain!, :end undrain!}
   "replace"    {:doc   "a gateway loses its disk and takes, with an empty one, the place of its former self"
                 :begin replace!}})
