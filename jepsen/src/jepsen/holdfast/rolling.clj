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
  "To a gateway that does not serve; there may be nobody who serves just now."
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
  "Each gateway ended by SIGTERM and started again, the next one once the cluster
  says that this one is ready. With another program, all go over to it, and the
  next time back."
  [test dice state]
  (let [which (when (:other-binary test)
                (if (= :other-binary (:program state)) :binary :other-binary))
        nodes (shuffled dice (running test state))
        done  (reduce (fn [done n]
                        (let [res    (restart-one! test n which)
                              ready? (db/await-ready test n 20)
                              done   (assoc done n (assoc res :ready? ready?))]
                          ; One that is not ready must not be joined by another.
                          (if ready? done (reduced done))))
                      {} nodes)]
    [(assoc state :program which)
     {:order   nodes
      :program which
      :done    done
      :hit?    (and (= (count done) (count nodes))
                    (every? (comp number? :ended-ms) (vals done)))}]))

(def faults
  {"switchover" {:doc   "the set moved to another gateway by the command line"
                 :begin switchover!}
   "upgrade"    {:doc   "every gateway in turn ended by SIGTERM and started again, with --other-binary if there is one"
                 :begin upgrade!}})
