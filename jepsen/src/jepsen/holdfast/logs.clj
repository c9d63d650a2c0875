(ns jepsen.holdfast.logs
  "Lines that a gateway's log must not have: a panic, an assertion, a broken rule. A
  gateway logs damage that it found (R9); whether that is an alarm depends on the
  nemesis's faults there. `alarms` judges lines only, so it is tested without a
  cluster (test/jepsen/holdfast/logs_test.clj).

  When a node's disk is switched off, the nemesis writes marks into its gateway's
  log, around the time in which that disk answers with EIO. They are between the
  gateway's own lines, so no clock has to be right. Another mark precedes damage to
  its journal."
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
  "Log line of a member whose journal was truncated: it lacks an acknowledged entry,
  and exits. Required."
  #"R11: .*log went backwards")

(def ^:private lost-part
  "What the others say of the member whose journal was spoilt."
  #"R9: a member has lost part of its log and asks to be removed")

(def ^:private told-so
  "The leader's log line about a member whose log went backwards. That member logs it
  too."
  #"R11: telling the member that it must exit .*says that it does not have")

(def ^:private eio #"\(os error 5\)")

(defn alarms
  "Forbidden lines of one node under these faults (a set of names). An R9 line is
  allowed at the node with the damaged journal, from then on; and where this disk
  was switched off at that time and the line reports its refusal (EIO). Any other R9
  line is forbidden: bytes that read back wrong, an EIO of a disk that was on, an
  EIO before or after the cut. Also allowed: after `truncate`, that node's line that
  its log went backwards, or others' lines that it lost part of it."
  [faults lines]
  (let [spoils? (some faults ["corrupt" "truncate"])
        ; After a power cut any member may log it.
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
