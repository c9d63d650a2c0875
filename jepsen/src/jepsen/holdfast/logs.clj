(ns jepsen.holdfast.logs
  "What a gateway's log may not say: a panic, an assertion, a broken rule. A gateway
  names damage that it found (R9), and whether that is an alarm depends on what the
  nemesis did to it. `alarms` judges lines and nothing else, so that it is tested
  without a cluster (test/jepsen/holdfast/logs_test.clj).

  Where a node's disk is switched off the nemesis writes marks into its gateway's
  log, around the time in which that disk answers with EIO. They stand between the
  gateway's own lines, so no clock has to be right."
  (:require [clojure.string :as str]))

(def dark
  "Before the disk is switched off."
  "jepsen: the disk of this node is about to be switched off")

(def light
  "After it is on again, and before the gateway is started."
  "jepsen: the disk of this node is on again")

(def ^:private broken
  "Never, whatever the nemesis does."
  #"panicked at|assertion|R(?!9:)\d+:")

(def ^:private backwards
  "What a member whose journal was cut off says, and has to say: it lacks what it had
  acknowledged, and ends."
  #"R11: .*log went backwards")

(def ^:private eio #"\(os error 5\)")

(defn alarms
  "The lines that no gateway may write under these faults (a set of names). An R9 is
  none where a bit of a journal is flipped (`corrupt`) or a file of it cut off
  (`truncate`; nor is there the word of a member that its log went backwards); nor where this very disk was
  switched off when it was said, and it says that the disk refused (EIO). Any other is
  one: bytes that read back wrong, an EIO of a disk that was on, an EIO before the cut
  or after it."
  [faults lines]
  (let [r9? (if (some faults ["corrupt" "truncate"])
              (constantly false)
              (fn [line dark?]
                (and (str/includes? line "R9:")
                     (not (and dark? (re-find eio line))))))]
    (:found
      (reduce (fn [{:keys [dark?] :as state} line]
                (cond
                  (str/includes? line dark)  (assoc state :dark? true)
                  (str/includes? line light) (assoc state :dark? false)
                  (or (and (re-find broken line)
                           (not (and (contains? faults "truncate")
                                     (re-find backwards line))))
                      (r9? line dark?))      (update state :found conj line)
                  :else                      state))
              {:dark? false, :found []}
              lines))))
