(ns jepsen.holdfast.prefix
  "The content that numbered writes leave, and whether an observation is a prefix of
  them (R4). Without a cluster and without Jepsen, so that it can be tested alone.

  A place is [volume slot], volumes by their place in the list. An observation of a
  writer is {place number}, without places never written.")

(def batch 16)
(def slots "Blocks of a writer on each volume." 64)
(def volumes 3)

(defn place
  "[volume slot] of number i. Slots are taken round, over many batches."
  [i]
  (let [b (quot (dec i) batch)]
    [(mod b volumes)
     (mod (+ (* batch (quot b volumes)) (mod (dec i) batch)) slots)]))

(defn contents
  "{place number} after these numbers, in this order, on top of `before`."
  ([numbers] (contents {} numbers))
  ([before numbers] (reduce (fn [m i] (assoc m (place i) i)) before numbers)))

(defn seen-map
  "{place number} of [[number in each slot] of each volume]."
  [seen]
  (into {} (for [[v numbers] (map-indexed vector seen)
                 [slot i]    (map-indexed vector numbers)
                 :when       (not= 0 i)]
             [[v slot] i])))

(defn judge
  "Judges one writer's completions in order, each write with :from, the index of its
  invocation. {:errors [...], :prefixes [...], :batches [...]}: the faults; of each
  unclear batch how much was there; and of each batch the numbers that took effect,
  from when they could and by when they had to: {:numbers :from :by}, where :by is
  nil if it was never acknowledged."
  [ops]
  (loop [ops ops, certain {}, unclear nil, errors [], prefixes [], batches []]
    (let [tentative (:numbers unclear)]
      (if-let [op (first ops)]
        (case [(:f op) (:type op)]
          [:write :ok]
          (let [[a b] (:value op), numbers (range a (inc b))]
            (recur (rest ops) (contents certain numbers) nil errors prefixes
                   (conj batches {:numbers numbers, :from (:from op)
                                  :by (:index op)})))

          [:write :info]
          (let [[a b] (:value op)]
            (recur (rest ops) certain {:numbers (range a (inc b)), :from (:from op)}
                   errors prefixes batches))

          [:read-back :ok]
          (let [seen (seen-map (:value op))
                fits (->> (range (inc (count tentative)))
                          (filter #(= seen (contents certain (take % tentative))))
                          first)]
            (if fits
              (recur (rest ops)
                     (contents certain (take fits tentative)) nil errors
                     (cond-> prefixes
                       (seq tentative) (conj [fits (count tentative)]))
                     (cond-> batches
                       (pos? fits) (conj {:numbers (take fits tentative)
                                          :from    (:from unclear), :by nil})))
              (recur (rest ops) seen nil
                     (conj errors
                           {:index     (:index op)
                            :writer    (:writer op)
                            :tentative [(first tentative) (last tentative)]
                            ; Missing: compared with all acknowledged numbers. Unexpected: with the uncertain ones, too.
                            :missing   (into (sorted-map)
                                             (remove (fn [[at i]]
                                                       (<= i (get seen at 0))))
                                             certain)
                            :unexpected (into (sorted-map)
                                              (remove (fn [[at i]]
                                                        (or (= i (get certain at))
                                                            (some #{i} tentative))))
                                              seen)
                            :seen-of-tentative (filterv (set (vals seen)) tentative)})
                     prefixes batches)))

          (recur (rest ops) certain unclear errors prefixes batches))
        {:errors errors, :prefixes prefixes
         ; No read-back tells how much of the last batch took effect.
         :batches (cond-> batches
                    unclear (conj (assoc unclear :by nil)))}))))

(defn- wrong
  "The fault of a snapshot's view of a writer, given the content that its numbers up
  to the newest one seen leave; nil if there is none."
  [{:keys [from by seen]} shown newest least most]
  (cond
    (nil? newest)    [:never-written]
    (< newest least) [:misses-acknowledged least newest]
    (< most newest)  [:shows-what-was-begun-later most newest]
    (not= seen shown) [:no-prefix
                       (into (sorted-map)
                             (filter (fn [[at i]] (not= i (get seen at)))) shown)
                       (into (sorted-map)
                             (filter (fn [[at i]] (not= i (get shown at)))) seen)]))

(defn- newest-in
  "The newest number that is seen, 0 for none."
  [seen]
  (reduce max 0 (vals seen)))

(defn judge-snapshots
  "Errors of the snapshots of a set, for one writer with these `batches`. A snapshot
  is {:name, :from and :by: indices of its call and its answer, :seen {place
  number}}. It has to show exactly the content that the effective numbers up to some
  one leave: everything acknowledged before its call, nothing begun after its
  answer."
  [batches snapshots]
  (let [numbers (vec (mapcat :numbers batches))
        at      (zipmap numbers (range 1 (inc (count numbers))))
        ; How many numbers each batch ends with, beside when it could and had to be there.
        ends    (map (fn [batch n] (assoc batch :upto n))
                     batches (reductions + (map #(count (:numbers %)) batches)))
        upto    (fn [pred] (reduce max 0 (map :upto (filter pred ends))))
        newest  (fn [{:keys [seen]}]
                  (if (empty? seen) 0 (at (newest-in seen))))]
    (loop [snapshots (sort-by #(or (newest %) -1) snapshots), n 0, shown {}, errors []]
      (if-let [snapshot (first snapshots)]
        (let [m     (newest snapshot)
              shown (if m (contents shown (subvec numbers n m)) shown)
              error (wrong snapshot shown m
                           (upto #(and (:by %) (< (:by %) (:from snapshot))))
                           (upto #(< (:from %) (:by snapshot))))]
          (recur (rest snapshots) (or m n) shown
                 (cond-> errors
                   error (conj {:snapshot (:name snapshot), :error error}))))
        errors))))

;; Promises of one observation about several writers.
;;
;; A snapshot is one moment of the whole set (R4), whichever gateway serves it and
;; whenever its volumes are read: a prefix of the one order of all writes. A write that
;; was acknowledged before another was begun comes before that one in this order, also
;; if the two have different writers. So an observer of the later one sees the earlier one.
;;
;; A read-back is not one moment of the set. A writer reads its own blocks, one volume
;; after another, at its own times, while the others continue; and it sees none of their
;; blocks. It can be judged as a prefix (`judge`) because its own writer has stopped.
;; Nothing follows from it for other writers, and two writers' read-backs are two
;; moments. So it is not judged here.

(defn- upto-before
  "How far a writer's batches were acknowledged before history index `t`. Of one writer
  each batch is begun once the one before is over, so the acknowledgements grow; `acks`
  is [[:by, number that it ends with] ...] in that order."
  [acks t]
  (loop [low 0, high (count acks)]
    (if (= low high)
      (if (zero? low) 0 (second (nth acks (dec low))))
      (let [mid (quot (+ low high) 2)]
        (if (< (first (nth acks mid)) t)
          (recur (inc mid) high)
          (recur low mid))))))

(defn- begun-by
  "Of each writer's newest number in a snapshot that it ever wrote, when its batch was
  begun: [[index writer number] ...]."
  [begins seen]
  (for [[writer begin] begins
        :let [newest (newest-in (nth seen writer))
              from   (begin newest)]
        :when from]
    [from writer newest]))

(defn judge-between
  "Errors of snapshots between writers: `batches` is {writer batches from `judge`}, a
  snapshot {:name, :seen [{place number} of each writer]}. Take the latest begun
  batch that a snapshot shows: everything acknowledged before its begin must be in
  the snapshot, or a newer number of the same writer. (`judge-snapshots` checks that
  a writer's older numbers are there below its newest one.)"
  [batches snapshots]
  (let [begins (update-vals batches
                            (fn [bs] (into {} (for [{:keys [numbers from]} bs
                                                    i numbers]
                                                [i from]))))
        acks   (update-vals batches
                            (fn [bs] (vec (for [{:keys [numbers by]} bs :when by]
                                            [by (last numbers)]))))]
    (for [{:keys [name seen]} snapshots
          :let  [shown (begun-by begins seen)]
          :when (seq shown)
          ; The shown write that began last: whatever was acknowledged before it must be shown.
          :let  [[from writer number] (reduce (partial max-key first) shown)]
          [other of-it] acks
          :let  [least (upto-before of-it from)
                 found (newest-in (nth seen other))]
          :when (< found least)]
      {:snapshot name
       :writer   other
       :error    [:misses-what-was-acknowledged-before-another-began
                  {:acknowledged least, :newest-seen found
                   :shows        {:writer writer, :number number}}]})))
