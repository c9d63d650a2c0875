(ns jepsen.holdfast.logs
  "What a gateway's log may not say: a panic, an assertion, a broken rule. A gateway
  names damage that it found (R9), and whether that is an alarm depends on what the
  nemesis did to it. `alarms` judges lines and nothing else, so that it is tested
  without a cluster (test/jepsen/holdfast/logs_test.clj).

  Where a node's disk is switched off the nemesis writes marks into its gateway's
  log, around the time in which that disk answers with EIO. They stand between the
  gateway's own lines, so no clock has to be right. So does one before its journal is
  spoilt."
  (:require [clojure.string :as str]))

(def dark
  "Before the disk is switched off."
  "jepsen: the disk of this node is about to be switched off")

(def light
  "After it is on again, and before the gateway is started."
  "jepsen: the disk of this node is on again")

(def spoilt
  "Before a bit of its journal is flipped, or a file of it cut off."
  "jepsen: the journal of this node is about to be spoilt")

(def ^:private broken
  "Never, whatever the nemesis does."
  #"panicked at|assertion|R(?!9:)\d+:")

(def ^:private backwards
  "What a member whose journal was cut off says, and has to say: it lacks what it had
  acknowledged, and ends."
  #"R11: .*log went backwards")

(def ^:private lost-part
  "What the others say of the member whose journal was spoilt."
  #"R9: a member has lost part of its log and asks to be taken out")

(def ^:private told-so
  "What the leader says of a member whose log went backwards. That one says so too."
  #"R11: told so, its process is to end .*says that it does not have")

(def ^:private eio #"\(os error 5\)")

(defn alarms
  "The lines of one node that no gateway may write under these faults (a set of names).
  An R9 is none at the node whose journal was spoilt, from then on; nor where this very
  disk was switched off when it was said, and it says that the disk refused (EIO). Any
  other is one: bytes that read back wrong, an EIO of a disk that was on, an EIO before
  the cut or after it. Nor is it one when the node whose journal was cut off
  (`truncate`) says that its log went backwards, or others say that it has lost part of
  it."
  [faults lines]
  (let [spoils? (some faults ["corrupt" "truncate"])
        ; After a power cut it may be of any member.
        cut?    (and (contains? faults "truncate")
                     (not (some faults ["unsynced" "unsynced-all"])))
        explained?
        (fn [{:keys [dark? spoilt?]} line]
          (or (and spoilt? (str/includes? line "R9:"))
              (and spoilt? (contains? faults "truncate") (re-find backwards line))
              (and spoils? (re-find lost-part line))
              (and cut? (re-find told-so line))
              (and dark? (str/includes? line "R9:") (re-find eio line))))]
    (:found
      (reduce (fn [state line]
                (cond
                  (str/includes? line dark)   (assoc state :dark? true)
                  (str/includes? line light)  (assoc state :dark? false)
                  (str/includes? line spoilt) (assoc state :spoilt? true)
                  (and (or (re-find broken line) (str/includes? line "R9:"))
                       (not (explained? state line)))
                  (update state :found conj line)
                  :else state))
              {:dark? false, :spoilt? false, :found []}
              lines))))
